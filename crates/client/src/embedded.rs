//! The engine in this process: how it starts, and how it survives a fork.
//!
//! Invariants: one engine a process, started once; forks go one at a time.

use crate::{control_dir, Error, Options};
use memfold_pager::lock::Mutex;
use memfold_pager::{Engine, Host};
use memfold_sys::uffd::{Features, Userfaultfd};
use memfold_sys::{file, Errno};

/// The pager of this process.
static ENGINE: Engine =
    Engine::new(Host { notice, open_control: control_dir::make_page, thread_cpu: |_| None, decay: || () });
/// Held from before a fork until after it.
static FORKING: Mutex = Mutex::new(());

fn notice(line: &str) {
    file::say(2, line.as_bytes());
    file::say(2, b"\n");
}

/// Starts the engine. To be called once.
pub fn start(options: &Options) -> Result<&'static Engine, Error> {
    let config = options.config()?;
    probe()?;
    control_dir::settle();
    ENGINE.hear_reports_in(control_dir::dir());
    ENGINE.prepare(&config)?;
    ENGINE.publish_control();
    // SAFETY: functions of this library. A library that is unloaded takes the engine's threads' code with it, fork or no
    // fork: `memfold.h` forbids it.
    if unsafe { libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) } != 0 {
        return Err(Error::Kernel(Errno::ENOMEM));
    }
    ENGINE.enable();
    Ok(&ENGINE)
}

/// Whether this process may and can fold.
pub fn probe() -> Result<(), Error> {
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
