//! One process that is served: the greeting, and the thread that serves it.
//!
//! Invariants: nothing that the process sent is believed before it was checked; the thread touches the memory of no other
//! process and waits for nobody but its own.

use crate::channel::{len_for, Channel, MOST_PAGES};
use crate::serve::Server;
use crate::wire::{Hello, Reply, FDS, HELLO_LEN, VERSION};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;
use sys::file::Fd;
use sys::socket::{self, MOST_FDS};
use sys::time::Nanos;
use sys::uffd::Userfaultfd;
use sys::{mem, time};

/// How long a process may take to greet.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// How often the counters are brought up to date.
const TICK: Nanos = Nanos::from_millis(250);
/// Touches served before anything else is looked at.
const BATCH: usize = 32;

/// Why a process is not served, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It only looked whether there is a daemon.
    #[error("it left at once")]
    Left,
    /// No greeting, or not one.
    #[error("it did not greet")]
    NoGreeting,
    /// Another version.
    #[error("it speaks version {0} of the protocol, this daemon speaks {VERSION}")]
    Version(u32),
    /// What came with the greeting is not what it should be.
    #[error("its {0} is not usable")]
    BadDescriptor(&'static str),
    /// An entry led nowhere, or its userfaultfd failed.
    #[error("its tables or its userfaultfd make no sense ({0}); it is left to itself")]
    Broken(sys::Errno),
    /// The kernel refused something.
    #[error("the kernel refused: {0}")]
    Kernel(#[from] sys::Errno),
}

/// A process that has greeted.
pub struct Peer {
    socket: UnixStream,
    shared: Arc<Shared>,
    uffd: Userfaultfd,
    /// Rung by the process.
    bell: Fd,
    /// Rings the process.
    their_bell: Fd,
}

/// What the rest of the daemon sees of a process.
pub struct Shared {
    channel: Channel,
    base: usize,
    len: usize,
    /// Whether it is being served.
    pub connected: AtomicBool,
}

impl Shared {
    /// The memory shared with the process.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nobody has the channel any more.
        let _ = unsafe { mem::munmap(self.base, self.len) };
    }
}

impl Peer {
    /// Takes the greeting and answers it.
    pub fn greet(socket: UnixStream) -> Result<Peer, Trouble> {
        let raw = socket.as_raw_fd();
        let peer = accept(raw).and_then(|(hello, [memory, uffd, bell, their_bell])| {
            check_link(&uffd, "anon_inode:[userfaultfd]", "userfaultfd")?;
            check_link(&bell, "anon_inode:[eventfd]", "event counter")?;
            check_link(&their_bell, "anon_inode:[eventfd]", "event counter")?;
            let shared = Arc::new(map(&memory, hello.pages)?);
            [&uffd, &bell, &their_bell].into_iter().try_for_each(never_blocks)?;
            Ok((shared, Userfaultfd::from_fd(uffd), bell, their_bell))
        });
        let error = match &peer {
            Ok(_) => 0,
            Err(Trouble::Version(_)) => libc::EPROTO,
            Err(Trouble::Kernel(errno)) => errno.0,
            Err(_) => libc::EINVAL,
        };
        let sent = socket::send(raw, &Reply { version: VERSION, error: error as u32 }.bytes(), &[]);
        let (shared, uffd, bell, their_bell) = peer?;
        // Who does not wait for the answer is not served.
        sent?;
        Ok(Peer { socket, shared, uffd, bell, their_bell })
    }

    /// What others may look at.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Serves the process until it leaves, or `stop` is set.
    pub fn serve(self, stop: &AtomicBool) -> Result<(), Trouble> {
        let result = self.serve_on(stop);
        self.shared.connected.store(false, Release);
        result
    }

    fn serve_on(&self, stop: &AtomicBool) -> Result<(), Trouble> {
        let (channel, header) = (&self.shared.channel, self.shared.channel.header());
        let mut server = Server::new()?;
        let mut next = 0;
        // The channel may have been served before: what is new is added.
        let (mut cpu, mut compressing) = (time::thread_cpu(), Nanos(0));
        let fds = [self.socket.as_raw_fd(), self.uffd.raw_fd(), self.bell.raw()];
        while !stop.load(Relaxed) {
            let ready = socket::wait_for(fds, TICK);
            if ready & 1 != 0 {
                // Nothing is ever sent after the greeting: it has left.
                return Ok(());
            }
            if ready & 4 != 0 {
                socket::silence(self.bell.raw());
            }
            let mut news = server.serve(channel, &self.uffd, BATCH).map_err(Trouble::Broken)? != 0;
            // One page at a time: who touches something waits no longer than that.
            for _ in 0..BATCH {
                let Some(done) = server.compress_one(channel, next) else { break };
                (next, news) = (done + 1, true);
                if server.serve(channel, &self.uffd, BATCH).map_err(Trouble::Broken)? != 0 {
                    socket::ring(self.their_bell.raw());
                }
            }
            if news {
                socket::ring(self.their_bell.raw());
                socket::ring(self.bell.raw());
            }
            let (cpu_before, compressing_before) = (cpu, compressing);
            (cpu, compressing) = (time::thread_cpu(), server.compressing());
            let (spent, compressed) = (cpu.since(cpu_before).0, compressing.since(compressing_before).0);
            header.cpu_ns.fetch_add(spent, Relaxed);
            header.compress_cpu_ns.fetch_add(compressed, Relaxed);
            header.fault_cpu_ns.fetch_add(spent.saturating_sub(compressed), Relaxed);
        }
        Ok(())
    }
}

fn accept(socket: i32) -> Result<(Hello, [Fd; FDS]), Trouble> {
    if socket::wait_for([socket], PATIENCE) == 0 {
        return Err(Trouble::NoGreeting);
    }
    let (mut bytes, mut fds) = ([0; HELLO_LEN + 1], [const { None }; MOST_FDS]);
    let len = socket::receive(socket, &mut bytes, &mut fds)?;
    if len == 0 {
        return Err(Trouble::Left);
    }
    let hello = Hello::parse(&bytes[..len]).ok_or(Trouble::NoGreeting)?;
    if hello.version != VERSION {
        return Err(Trouble::Version(hello.version));
    }
    let fds: Vec<Fd> = fds.into_iter().flatten().collect();
    let fds = fds.try_into().map_err(|_| Trouble::BadDescriptor("set of descriptors"))?;
    Ok((hello, fds))
}

/// Whether the descriptor is what it should be, by its name in `/proc`.
fn check_link(fd: &Fd, wanted: &str, what: &'static str) -> Result<(), Trouble> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.raw()));
    link.is_ok_and(|link| link.as_os_str() == wanted).then_some(()).ok_or(Trouble::BadDescriptor(what))
}

fn never_blocks(fd: &Fd) -> Result<(), Trouble> {
    // SAFETY: no memory involved.
    let set = unsafe { libc::fcntl(fd.raw(), libc::F_SETFL, libc::O_NONBLOCK) };
    (set == 0).then_some(()).ok_or(Trouble::BadDescriptor("descriptor"))
}

/// Maps a channel: for writing up to the store, which is the process's own.
fn map(memory: &Fd, pages: u64) -> Result<Shared, Trouble> {
    const BAD: Trouble = Trouble::BadDescriptor("channel");
    let pages = usize::try_from(pages).ok().filter(|pages| (1..=MOST_PAGES).contains(pages)).ok_or(BAD)?;
    let len = len_for(pages);
    // SAFETY: no memory involved.
    let seals = unsafe { libc::fcntl(memory.raw(), libc::F_GET_SEALS) };
    // Without this seal the process could shorten the file under us, and a look at it would end the daemon.
    if seals < 0
        || seals & libc::F_SEAL_SHRINK == 0
        || sys::file::status(memory.raw()).map_or(0, |status| status.st_size) != len as i64
    {
        return Err(BAD);
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of a file that stays as long as it is.
    let base = unsafe { mem::mmap(0, len, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, memory.raw(), 0) }?;
    // SAFETY: just mapped, and unmapped when `Shared` goes.
    let channel = unsafe { Channel::at(base, pages) };
    let shared = Shared { channel, base, len, connected: AtomicBool::new(true) };
    let (start, end) = channel.store();
    // SAFETY: a part of our mapping, which is only read.
    unsafe { mem::mprotect(start, end - start, libc::PROT_READ) }?;
    Ok(shared)
}
