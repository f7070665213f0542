//! Folding by the daemon: the agent in this process, and how it is started, asked and taken through a fork.
//!
//! Invariants: one agent a process, started once. Nothing is away while the process forks, so a child needs neither agent nor
//! daemon; it is not folded.

mod agent;
mod counters;
mod door;
mod fold;
mod mail;
mod region;
mod requests;

pub use mail::Op;

use crate::{control_dir, embedded, Error, Options};
use agent::{Agent, Parts, PATH_LEN};
use mail::Mail;
use memfold_daemon::channel::{len_for, Channel};
use memfold_pager::config::Setting;
use memfold_pager::control::ControlPage;
use memfold_pager::lock::Mutex;
use memfold_pager::mirror::Mirror;
use memfold_sys::thread::Thread;
use memfold_sys::time::Nanos;
use memfold_sys::uffd::{Features, Userfaultfd};
use memfold_sys::{mem, socket, PAGE_SIZE};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// How long the daemon may take to answer.
const PATIENCE: Nanos = Nanos::from_secs(3);
/// Descriptors of ours start here, out of the way of programs that count on low numbers.
const FIRST_FD: i32 = 700;
/// Bytes that may be registered at a time; address space for tables and store is taken for so many. Fewer where files may not be as
/// long (`RLIMIT_FSIZE`), but not below the second.
const MOST_BYTES: usize = 16 << 30;
const LEAST_BYTES: usize = 16 << 20;

static MAIL: Mail = Mail::new();
/// Where others see the counters.
static MIRROR: Mirror = Mirror::new();
/// Held from before a fork until after it.
static FORKING: Mutex = Mutex::new(());
/// The process that the agent runs in; a forked child has none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The counter that rings the agent.
static BELL: AtomicU32 = AtomicU32::new(0);

/// A process that the daemon serves.
#[derive(Clone, Copy)]
pub struct Served {
    control: &'static ControlPage,
}

/// Starts the agent and waits until the daemon at `path` serves this process. To be called once.
pub fn start(options: &Options, path: &Path) -> Result<Served, Error> {
    let config = options.config()?;
    embedded::probe()?;
    let name = path.as_os_str().as_bytes();
    if name.len() >= PATH_LEN {
        return Err(Error::NotSupported(format!("{} is too long for a socket's path", path.display())));
    }
    drop(
        door::connect(name)
            .map_err(|refused| Error::NotSupported(format!("{}: {refused}", path.display())))?,
    );
    control_dir::settle();
    let control = private_page()?;
    for setting in Setting::ALL {
        control.settings[setting as usize].store(config.get(setting), Relaxed);
    }
    MIRROR.set(control_dir::make_page(control));
    let mut bytes = [0; PATH_LEN];
    bytes[..name.len()].copy_from_slice(name);
    let (channel, memory) = make_channel(pages_within(memfold_sys::file::size_limit())?)?;
    let bell = above(socket::event_counter()?);
    BELL.store(bell.raw() as u32, Relaxed);
    let parts = Parts {
        channel,
        memory: above(memory),
        uffd: open(
            Features::MOVE | Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED | Features::WP_ASYNC,
        )?,
        staging: open(Features::MOVE | Features::PAGEFAULT_FLAG_WP)?,
        bell,
        path: bytes,
        control,
        mirror: &MIRROR,
        config,
        mail: &MAIL,
    };
    let place = mem::map_anonymous(0, size_of::<Agent>().next_multiple_of(PAGE_SIZE), 0)?;
    mem::name_range(place, size_of::<Agent>().next_multiple_of(PAGE_SIZE), c"memfold tables");
    // SAFETY: a fresh mapping, large enough and aligned to a page.
    unsafe { (place as *mut Agent).write(Agent::new(parts)?) };
    // SAFETY: functions of this library, which `memfold.h` forbids to unload.
    if unsafe { libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) } != 0 {
        return Err(Error::Kernel(memfold_sys::Errno::ENOMEM));
    }
    OWNER.store(memfold_sys::thread::current_pid(), Release);
    // The thread is never waited for.
    // SAFETY: the entry keeps to what such a thread may do, and the agent is its own from here on.
    let _ = unsafe { Thread::spawn(run, place) }?;
    MAIL.wait_served(PATIENCE).map_err(|e| {
        Error::NotSupported(format!("the daemon at {} does not serve this process: {e}", path.display()))
    })?;
    Ok(Served { control })
}

extern "C" fn run(agent: usize) {
    // SAFETY: written by `start`, and nobody else looks at it.
    unsafe { &mut *(agent as *mut Agent) }.run();
}

fn open(features: Features) -> Result<Userfaultfd, Error> {
    let uffd = Userfaultfd::open()?;
    uffd.handshake(features).map_err(|_| {
        Error::NotSupported("the kernel's userfaultfd cannot track writes (Linux 6.8 or later can)".into())
    })?;
    Ok(uffd.move_above(FIRST_FD))
}

fn above(fd: memfold_sys::file::Fd) -> memfold_sys::file::Fd {
    memfold_sys::file::dup_above(fd.raw(), FIRST_FD).unwrap_or(fd)
}

/// How many pages a channel can be for that is no longer than `limit` bytes.
fn pages_within(limit: Option<u64>) -> Result<usize, Error> {
    let mut bytes = MOST_BYTES;
    while let Some(limit) = limit.filter(|limit| len_for(bytes / PAGE_SIZE) as u64 > *limit) {
        bytes /= 2;
        if bytes < LEAST_BYTES {
            return Err(Error::NotSupported(format!(
                "files may have {limit} bytes at most here (`ulimit -f`), and the memory that the program shares with the daemon \
                 needs {}",
                len_for(LEAST_BYTES / PAGE_SIZE)
            )));
        }
    }
    Ok(bytes / PAGE_SIZE)
}

/// Makes the shared memory and maps it, for ever. A forked child does not have it.
fn make_channel(pages: usize) -> Result<(Channel, memfold_sys::file::Fd), Error> {
    let len = len_for(pages);
    let memory = socket::sealed_memory(c"memfold channel", len as u64)?;
    let base = mem::reserve_aligned(len, memfold_pager::store::SEGMENT)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: replaces our own reservation, and stays for ever.
    let channel = unsafe {
        mem::mmap(base, len, prot, flags, memory.raw(), 0)?;
        mem::madvise(base, len, libc::MADV_DONTFORK)?;
        Channel::at(base, pages)
    };
    channel.populate_head()?;
    Ok((channel, memory))
}

/// A control page.
fn private_page() -> Result<&'static ControlPage, Error> {
    let addr = mem::map_anonymous(0, memfold_pager::control::CONTROL_LEN, 0)?;
    // SAFETY: zeros are a control page, and the mapping stays for ever.
    let page = unsafe { &*(addr as *const ControlPage) };
    page.begin();
    Ok(page)
}

impl Served {
    /// Has the agent do something.
    pub fn ask(&self, op: Op, addr: usize, len: usize) -> Result<(), Error> {
        if OWNER.load(Acquire) != memfold_sys::thread::current_pid() {
            return Err(Error::NotStarted);
        }
        ask(op, addr, len).map_err(|e| match e {
            memfold_sys::Errno::ENOENT => Error::NotRegistered { addr, len },
            e => Error::Kernel(e),
        })
    }

    /// The counters.
    pub fn control(&self) -> &'static ControlPage {
        self.control
    }
}

fn ask(op: Op, addr: usize, len: usize) -> memfold_sys::Result<()> {
    MAIL.ask(BELL.load(Relaxed) as i32, op, addr, len)
}

fn is_here() -> bool {
    OWNER.load(Acquire) == memfold_sys::thread::current_pid()
}

unsafe extern "C" fn before_fork() {
    FORKING.acquire();
    if is_here() {
        let _ = ask(Op::Freeze, 0, 0);
    }
}

unsafe extern "C" fn after_in_parent() {
    if is_here() {
        let _ = ask(Op::Thaw, 0, 0);
    }
    FORKING.release();
}

unsafe extern "C" fn after_in_child() {
    FORKING.reset_in_child();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_as_long_as_files_may_be_and_too_short_a_limit_is_named() {
        assert_eq!(pages_within(None).unwrap(), MOST_BYTES / PAGE_SIZE);
        let pages = pages_within(Some(1 << 30)).unwrap();
        assert!(len_for(pages) <= 1 << 30 && len_for(2 * pages) > 1 << 30, "{pages}");
        let refused = pages_within(Some(12 << 10)).unwrap_err().to_string();
        assert!(refused.contains("12288 bytes") && refused.contains("ulimit -f"), "{refused}");
    }
}
