//! One process that is served: the greeting, and the thread that serves it.
//!
//! Invariants: nothing that the process sent is believed before it was checked; the thread touches the memory of no other
//! process and waits for nobody: not for its own process either, which may stop, ring for ever, or never hear.

use crate::account::Account;
use crate::budget::LEAST;
use crate::channel::{len_for, Channel, MOST_PAGES};
use crate::guard::Guard;
use crate::quota::{self, Excess, Ledger, Permit};
use crate::serve::Server;
use crate::wire::{self, Hello, Reply, FDS, HELLO_LEN, VERSION};
use memfold_sys::file::{self, Fd};
use memfold_sys::socket::{self, Credentials, MOST_FDS};
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::Userfaultfd;
use memfold_sys::{mem, Errno};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

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
    /// It or its user has enough.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// Another version.
    #[error("it speaks version {0} of the protocol, this daemon speaks {VERSION}")]
    Version(u32),
    /// What came with the greeting is not what it should be.
    #[error("its {0} is not usable")]
    BadDescriptor(&'static str),
    /// An entry led nowhere, or its userfaultfd failed.
    #[error("its tables or its userfaultfd make no sense ({0}); it is left to itself")]
    Broken(Errno),
    /// A page of the channel could not be had.
    #[error("a part of its channel is missing; it is left to itself")]
    Torn,
    /// Reads of its userfaultfd would wait.
    #[error("it has made its userfaultfd wait; it is left to itself")]
    Waits,
    /// The kernel refused something.
    #[error("the kernel refused: {0}")]
    Kernel(#[from] Errno),
}

/// A process that has greeted.
pub struct Peer {
    socket: UnixStream,
    shared: Arc<Shared>,
    uffd: Userfaultfd,
    permit: Permit,
}

/// What the rest of the daemon sees of a process.
pub struct Shared {
    /// Its number.
    pub pid: u32,
    /// What it has.
    pub account: Account,
    channel: Channel,
    base: usize,
    len: usize,
    guard: Guard,
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
    /// Reads the greeting, which must have come, and answers it.
    pub fn greet(socket: UnixStream, who: Credentials, ledger: &Arc<Ledger>) -> Result<Peer, Trouble> {
        let raw = socket.as_raw_fd();
        let peer = accept(raw).and_then(|(hello, [memory, uffd])| {
            check_link(&uffd, "anon_inode:[userfaultfd]", "userfaultfd")?;
            let (pages, len) = check_channel(&memory, hello.pages)?;
            let permit = ledger.admit(who.uid, who.pid, pages)?;
            let shared = Arc::new(map(memory, pages, len, who.pid)?);
            never_waits(&uffd)?;
            Ok((shared, Userfaultfd::from_fd(uffd), permit))
        });
        let error = match &peer {
            Ok(_) => 0,
            Err(Trouble::Version(_)) => libc::EPROTO,
            Err(Trouble::Excess(_)) => libc::EDQUOT,
            Err(Trouble::Kernel(errno)) => errno.0,
            Err(_) => libc::EINVAL,
        };
        let sent = socket::send(raw, &Reply { version: VERSION, error: error as u32 }.bytes(), &[]);
        let (shared, uffd, permit) = peer?;
        // Who does not wait for the answer is not served.
        sent?;
        Ok(Peer { socket, shared, uffd, permit })
    }

    /// What others may look at.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Serves the process until it leaves, or `stop` is set.
    pub fn serve(mut self, stop: &AtomicBool) -> Result<(), Trouble> {
        let result = self.serve_on(stop);
        self.shared.connected.store(false, Release);
        result
    }

    fn serve_on(&mut self, stop: &AtomicBool) -> Result<(), Trouble> {
        let (channel, header) = (&self.shared.channel, self.shared.channel.header());
        let mut server = Server::wary()?;
        let (mut next, mut again) = (0, true);
        // The channel may have been served before: what is new is added.
        let begun = time::thread_cpu();
        let (mut cpu, mut compressing) = (begun, Nanos(0));
        let fds = [self.socket.as_raw_fd(), self.uffd.raw_fd()];
        while !stop.load(Relaxed) {
            let [heard, touched] = socket::poll(fds, if again { Nanos(0) } else { TICK });
            if heard != 0 && !hear(&self.socket) {
                return Ok(());
            }
            // What the kernel says of one whose reads wait.
            if touched & (libc::POLLERR | libc::POLLNVAL) != 0 {
                return Err(Trouble::Waits);
            }
            let told = server.serve(channel, &self.uffd, BATCH).map_err(Trouble::Broken)? != 0;
            let mut compressed = false;
            // One page at a time: who touches something waits no longer than that.
            for _ in 0..BATCH {
                let Some(done) = server.compress_one(channel, next) else { break };
                (next, compressed) = (done + 1, true);
                if server.serve(channel, &self.uffd, BATCH).map_err(Trouble::Broken)? != 0 {
                    wire::ring(self.socket.as_raw_fd());
                }
            }
            // Whether there is more that came without a bell.
            again = told || compressed;
            if again {
                wire::ring(self.socket.as_raw_fd());
            }
            if self.shared.guard.is_torn() {
                return Err(Trouble::Torn);
            }
            let (cpu_before, compressing_before) = (cpu, compressing);
            (cpu, compressing) = (time::thread_cpu(), server.compressing());
            let (spent, compressed) = (cpu.since(cpu_before), compressing.since(compressing_before).0);
            header.cpu_ns.fetch_add(spent.0, Relaxed);
            header.compress_cpu_ns.fetch_add(compressed, Relaxed);
            header.fault_cpu_ns.fetch_add(spent.0.saturating_sub(compressed), Relaxed);
            self.shared.account.note(server.done(), cpu.since(begun).0);
            if self.permit.charge(time::now(), spent) {
                time::sleep(quota::PAUSE);
            }
        }
        Ok(())
    }
}

/// Takes note of the bell. Whether the process is still there.
fn hear(socket: &UnixStream) -> bool {
    // Rung more often than this, it is rung again.
    match socket::hear(socket.as_raw_fd(), &mut [0; 512]) {
        Ok(len) => len != 0,
        Err(error) => matches!(error, Errno::EAGAIN | Errno::EINTR),
    }
}

fn accept(socket: i32) -> Result<(Hello, [Fd; FDS]), Trouble> {
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

/// For the kernel, which says of a userfaultfd whose reads wait that it is always ready. The process can take it back at any time.
fn never_waits(fd: &Fd) -> Result<(), Trouble> {
    // SAFETY: no memory involved.
    let set = unsafe { libc::fcntl(fd.raw(), libc::F_SETFL, libc::O_NONBLOCK) };
    (set == 0).then_some(()).ok_or(Trouble::BadDescriptor("descriptor"))
}

/// The pages and the length of a channel that can be mapped without fear: a file in memory, of plain pages, that stays as long as it is.
fn check_channel(memory: &Fd, pages: u64) -> Result<(usize, usize), Trouble> {
    const BAD: Trouble = Trouble::BadDescriptor("channel");
    let pages = usize::try_from(pages).ok().filter(|pages| (1..=MOST_PAGES).contains(pages)).ok_or(BAD)?;
    let len = len_for(pages);
    // SAFETY: no memory involved.
    let seals = unsafe { libc::fcntl(memory.raw(), libc::F_GET_SEALS) };
    const NEEDED: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: zeros are a `struct statfs`, which the kernel fills.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a whole structure.
    let known = unsafe { libc::fstatfs(memory.raw(), &mut system) } == 0;
    // Of huge pages there may be none when one is looked at.
    let plain = known && system.f_type == libc::TMPFS_MAGIC;
    let as_long = file::status(memory.raw()).is_ok_and(|status| status.st_size == len as i64);
    (seals >= 0 && seals & NEEDED == NEEDED && plain && as_long).then_some((pages, len)).ok_or(BAD)
}

/// Maps a channel: for writing up to the store, which is the process's own.
fn map(memory: Fd, pages: usize, len: usize, pid: u32) -> Result<Shared, Trouble> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, of a file that stays as long as it is.
    let base = unsafe { mem::mmap(0, len, prot, flags, memory.raw(), 0) }?;
    // SAFETY: just mapped, and unmapped when `Shared` goes.
    let channel = unsafe { Channel::at(base, pages) };
    let unmap = |_: &Errno| {
        // SAFETY: our own mapping, unused.
        let _ = unsafe { mem::munmap(base, len) };
    };
    // Before anything of it is looked at.
    let guard = Guard::over(base, len).ok_or(Errno::EMFILE).inspect_err(unmap)?;
    // What a daemon before had granted; only the process itself can lose by it.
    let limit = match channel.header().resident_limit.load(Relaxed) {
        0 => u64::MAX,
        bytes => bytes.max(LEAST),
    };
    let account = Account::open(pid, memory, limit)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE)))
        .inspect_err(unmap)?;
    let shared = Shared { pid, account, channel, base, len, guard, connected: AtomicBool::new(true) };
    let (start, end) = channel.store();
    // SAFETY: a part of our mapping, which is only read.
    unsafe { mem::mprotect(start, end - start, libc::PROT_READ) }?;
    channel.populate_head()?;
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::socket::sealed_memory;

    #[test]
    fn only_a_file_in_plain_memory_that_keeps_its_length_is_a_channel() {
        let len = len_for(64) as u64;
        let good = sealed_memory(c"test", len).unwrap();
        assert!(check_channel(&good, 64).is_ok_and(|found| found == (64, len as usize)));
        assert!(check_channel(&good, 4096).is_err() && check_channel(&good, 0).is_err());
        assert!(check_channel(&good, u64::MAX).is_err());
        for (flags, seals) in [
            (0, libc::F_SEAL_SHRINK),
            (0, libc::F_SEAL_GROW),
            (libc::MFD_HUGETLB, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW),
        ] {
            // SAFETY: a new descriptor, which is ours; no memory involved.
            let bad = unsafe {
                let raw = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING | flags);
                libc::ftruncate(raw, len as i64);
                libc::fcntl(raw, libc::F_ADD_SEALS, seals);
                Fd::from_raw(raw)
            };
            assert!(check_channel(&bad, 64).is_err(), "{flags:x} {seals}");
        }
    }
}
