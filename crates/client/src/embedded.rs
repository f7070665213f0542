//! The engine in this process: how it starts, under whose budget it folds, and how it survives a fork.
//!
//! Invariants: one engine a process, started once; forks go one at a time. A daemon is nothing but a budget: whether it is there, comes or goes,
//! no page depends on it.

use crate::environment::{self, Environment};
use crate::{control_dir, socket, Error, Options};
use memfold_pager::lock::Mutex;
use memfold_pager::{Engine, Host};
use memfold_sys::uffd::{Features, Userfaultfd};
use memfold_sys::{table, Errno};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The pager of this process.
static ENGINE: Engine = Engine::new(Host {
    notice,
    open_control: control_dir::make_page,
    own_heap: || OWN_HEAP.load(Relaxed),
    thread_cpu: |_, _| None,
    went_away: |_, _| {},
    sampler: None,
    decay: || (),
});
/// Whether agent threads may use the global allocator, which is the program's in one that is written in Rust.
static OWN_HEAP: AtomicBool = AtomicBool::new(false);
/// Held from before a fork until after it.
static FORKING: Mutex = Mutex::new(());

fn notice(line: &str) {
    if !environment::is_quiet() {
        table::say(line);
    }
}

/// Says, before the start, that the global allocator is [`crate::OwnHeap`]: for a library with a heap of its own, as that for C is. Then there can be
/// replacement policies, whose tables the engine's threads take from it.
pub fn have_own_heap() {
    OWN_HEAP.store(true, Relaxed);
}

/// Starts the engine. To be called once.
pub fn start(options: &Options) -> Result<&'static Engine, Error> {
    let environment = Environment::now();
    let daemon = options.daemon_path().map(|path| socket::whole(&path)).transpose()?;
    let config = options.tell(&ENGINE, &environment)?;
    environment::settle();
    probe()?;
    control_dir::settle();
    ENGINE.hear_reports_in(control_dir::dir());
    if let Some(path) = &daemon {
        // It is no longer than a socket's can be, see `socket::whole`.
        ENGINE.obey_daemon(path);
    }
    ENGINE.prepare(&config)?;
    ENGINE.be_told_of_tier(|name| environment.get(name));
    ENGINE.publish_control();
    // SAFETY: functions of this library. A library that is unloaded takes the engine's threads' code with it, fork or no
    // fork: `memfold.h` forbids it.
    if unsafe { libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) } != 0 {
        return Err(Error::Kernel(Errno::ENOMEM));
    }
    ENGINE.enable();
    if let Some(Err(why)) = daemon.as_deref().map(socket::listens) {
        notice(&why);
    }
    Ok(&ENGINE)
}

/// Whether this process may and can fold.
fn probe() -> Result<(), Error> {
    let uffd =
        Userfaultfd::open().map_err(|e| Error::NotSupported(format!("userfaultfd is not permitted: {e}")))?;
    uffd.handshake(Features::MOVE | Features::THREAD_ID).map(drop).map_err(|_| {
        Error::NotSupported("the kernel's userfaultfd lacks UFFDIO_MOVE (Linux 6.8 or later has it)".into())
    })
}

unsafe extern "C" fn before_fork() {
    FORKING.acquire();
    ENGINE.before_fork();
}

unsafe extern "C" fn after_in_parent() {
    ENGINE.after_fork_in_parent();
    FORKING.release();
}

unsafe extern "C" fn after_in_child() {
    ENGINE.after_fork_in_child();
    FORKING.reset_in_child();
}
