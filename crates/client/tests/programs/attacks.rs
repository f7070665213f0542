//! Programs that try to harm the daemon, or through it another program. Each says `ready` when it has done its worst, and goes on
//! until its standard input is closed; it says `dropped` when the daemon has left it to itself.

use memfold_daemon::channel::{len_for, Channel, Entry, State};
use memfold_daemon::wire::{Hello, VERSION};
use memfold_sys::file::Fd;
use memfold_sys::socket::{self, MOST_FDS};
use memfold_sys::time::Nanos;
use memfold_sys::uffd::{Features, Modes, Userfaultfd};
use memfold_sys::{mem, PAGE_SIZE};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex};

/// Silent connections of the crowd.
const CROWD: usize = 2000;
/// Connections that one process tries to have served.
const HOARD: usize = 300;
/// Pages of most channels.
const PAGES: usize = 1024;

/// Does what no honest program does.
pub fn attack(socket: &str, what: &str) {
    match what {
        "crowd" => crowd(socket),
        "hoard" => hoard(socket),
        "unblocked" => watch(unblocked(socket)),
        "stopped" => {
            let _greeted = greet(socket, PAGES, Features::MOVE);
            say("ready");
            // SAFETY: stops this process until the test goes on with it or ends it.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        "ringing" => ringing(socket),
        "again" => watch(again(socket)),
        "forking" => watch(forking(socket)),
        "sizes" => watch(sizes(socket)),
        "flipping" => watch(flipping(socket)),
        "hugetlb" => hugetlb(socket),
        other => panic!("no attack {other:?}"),
    }
}

fn say(line: &str) {
    println!("{line}");
}

/// Returns when the test is over.
fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A connection that is served.
struct Greeted {
    socket: Fd,
    uffd: Arc<Userfaultfd>,
    channel: Channel,
    _memory: Fd,
}

fn offer(socket: &str, memory: &Fd, uffd: &Userfaultfd, pages: usize) -> Option<Fd> {
    let fd = socket::connect(socket.as_bytes()).ok()?;
    let hello = Hello { version: VERSION, pages: pages as u64 }.bytes();
    socket::send(fd.raw(), &hello, &[memory.raw(), uffd.raw_fd()]).ok()?;
    socket::wait_for([fd.raw()], Nanos::from_secs(60));
    let mut answer = [0; 64];
    let len = socket::receive(fd.raw(), &mut answer, &mut [const { None }; MOST_FDS]).unwrap_or(0);
    (len == 16 && answer[12..16] == [0; 4]).then_some(fd)
}

fn uffd_with(features: Features) -> Arc<Userfaultfd> {
    let uffd = Userfaultfd::open().unwrap();
    uffd.handshake(features).unwrap();
    Arc::new(uffd)
}

fn greet(socket: &str, pages: usize, features: Features) -> Greeted {
    let memory = socket::sealed_memory(c"attack", len_for(pages) as u64).unwrap();
    let uffd = uffd_with(features);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let base = unsafe { mem::mmap(0, len_for(pages), prot, flags, memory.raw(), 0) }.unwrap();
    let channel = unsafe { Channel::at(base, pages) };
    let fd = offer(socket, &memory, &uffd, pages).expect("an honest greeting was refused");
    Greeted { socket: fd, uffd, channel, _memory: memory }
}

/// Says when the daemon has given the connection up.
fn watch(greeted: Greeted) {
    std::thread::spawn(move || {
        loop {
            socket::wait_for([greeted.socket.raw()], Nanos::from_secs(60));
            let mut bytes = [0; 64];
            match socket::receive(greeted.socket.raw(), &mut bytes, &mut [const { None }; MOST_FDS]) {
                Ok(0) => break,
                Err(error) if error != memfold_sys::Errno::EAGAIN => break,
                _ => {}
            }
        }
        say("dropped");
        // The memory stays as it is.
        std::mem::forget(greeted);
    });
    wait_for_the_end();
    // Threads may wait for the daemon for ever.
    std::process::exit(0);
}

/// As many silent connections as it is let have, and always new ones for those that were ended.
fn crowd(socket: &str) {
    let most = libc::rlimit { rlim_cur: CROWD as u64 + 64, rlim_max: CROWD as u64 + 64 };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &most) }, 0);
    let held = Arc::new(Mutex::new(Vec::new()));
    let crowd = held.clone();
    let socket = socket.to_owned();
    std::thread::spawn(move || loop {
        let mut held = crowd.lock().unwrap();
        while held.len() < CROWD {
            match UnixStream::connect(&socket) {
                Ok(stream) => held.push(stream),
                Err(_) => break,
            }
        }
        let mut polls: Vec<_> = held.iter().map(poll_of).collect();
        drop(held);
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, 1) };
        let mut at = 0;
        crowd.lock().unwrap().retain(|_| {
            at += 1;
            polls[at - 1].revents == 0
        });
    });
    // All of them were connected once.
    while held.lock().unwrap().len() < CROWD {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    say("ready");
    wait_for_the_end();
    std::process::exit(0);
}

fn poll_of(stream: &UnixStream) -> libc::pollfd {
    use std::os::fd::AsRawFd;
    libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// One process with many connections, each in order.
fn hoard(socket: &str) {
    let all: Vec<_> = (0..HOARD)
        .filter_map(|_| {
            let memory = socket::sealed_memory(c"attack", len_for(PAGES) as u64).unwrap();
            let uffd = uffd_with(Features::MOVE);
            let fd = offer(socket, &memory, &uffd, PAGES)?;
            Some((fd, uffd, memory))
        })
        .collect();
    say("ready");
    wait_for_the_end();
    drop(all);
}

/// Takes back what the daemon has set: the description of the file is the same one.
fn unblock(uffd: &Userfaultfd) {
    assert_eq!(unsafe { libc::fcntl(uffd.raw_fd(), libc::F_SETFL, 0) }, 0);
}

fn unblocked(socket: &str) -> Greeted {
    let greeted = greet(socket, PAGES, Features::MOVE);
    unblock(&greeted.uffd);
    say("ready");
    greeted
}

/// Rings for ever and never hears.
fn ringing(socket: &str) {
    let greeted = greet(socket, PAGES, Features::MOVE);
    let mut told = false;
    std::thread::spawn(|| {
        wait_for_the_end();
        std::process::exit(0);
    });
    loop {
        let sent = socket::send(greeted.socket.raw(), &[1; 64], &[]);
        if !std::mem::replace(&mut told, true) {
            say("ready");
        }
        if sent == Err(memfold_sys::Errno::EAGAIN) {
            let mut poll = libc::pollfd { fd: greeted.socket.raw(), events: libc::POLLOUT, revents: 0 };
            unsafe { libc::poll(&mut poll, 1, 1) };
        }
    }
}

/// A thread that touches all pages from the one numbered `first` on, and drops the memory, again and again.
fn touch_and_drop(base: usize, len: usize, first: usize) {
    std::thread::spawn(move || loop {
        for page in (base + first * PAGE_SIZE..base + len).step_by(PAGE_SIZE) {
            unsafe { core::ptr::read_volatile(page as *const u8) };
        }
        let _ = unsafe { mem::madvise(base, len, libc::MADV_DONTNEED) };
    });
}

/// Threads that drop memory again and again, while others touch it: a copy to it is answered by `EAGAIN` for as long as nobody reads
/// of the drop, and who copies reads nothing.
fn again(socket: &str) -> Greeted {
    let greeted = greet(socket, PAGES, Features::MOVE | Features::EVENT_REMOVE);
    let (base, len) = registered(&greeted, PAGES);
    for n in 0..4 {
        std::thread::spawn(move || loop {
            let _ = unsafe { mem::madvise(base + n * PAGE_SIZE, PAGE_SIZE, libc::MADV_DONTNEED) };
        });
        touch_and_drop(base, len, n);
    }
    say("ready");
    greeted
}

/// A range that the daemon is to serve, all of it resident by its entries.
fn registered(greeted: &Greeted, pages: usize) -> (usize, usize) {
    let len = pages * PAGE_SIZE;
    let base = mem::map_anonymous(0, len, 0).unwrap();
    greeted.uffd.register(base, len, Modes::MISSING).unwrap();
    let region = &greeted.channel.header().regions[0];
    region.pages.store(pages as u64, SeqCst);
    region.base.store(base as u64, SeqCst);
    (base, len)
}

/// Each fork makes a descriptor for whoever reads of it.
fn forking(socket: &str) -> Greeted {
    let greeted = greet(socket, PAGES, Features::MOVE | Features::EVENT_FORK);
    registered(&greeted, 1);
    std::thread::spawn(|| loop {
        // The bare call: the C library's would keep its locks while it waits for somebody to read of the fork.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if pid == 0 {
            unsafe { libc::_exit(0) };
        }
        unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
    });
    say("ready");
    greeted
}

/// Says that it has 128 GiB in memory, and more.
fn sizes(socket: &str) -> Greeted {
    let greeted = greet(socket, memfold_daemon::channel::MOST_PAGES, Features::MOVE);
    let header = greeted.channel.header();
    for word in [&header.managed_bytes, &header.resident_bytes, &header.evicted_bytes, &header.store_bytes] {
        word.store(u64::MAX, SeqCst);
    }
    for word in [&header.stall_ns, &header.cpu_ns, &header.restored, &header.compressed, &header.zeroed] {
        word.store(u64::MAX, SeqCst);
    }
    header.resident_limit.store(u64::MAX, SeqCst);
    say("ready");
    greeted
}

/// Everything changes while the daemon reads it.
fn flipping(socket: &str) -> Greeted {
    let greeted = greet(socket, PAGES, Features::MOVE);
    let (base, len) = registered(&greeted, PAGES);
    let channel = greeted.channel;
    std::thread::spawn(move || {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 20
        };
        let (store, end) = channel.store();
        loop {
            let header = channel.header();
            let number = next() as usize % PAGES;
            let states = [State::Resident, State::Held, State::Stored, State::Same, State::Returned];
            let entry = Entry::new(states[next() as usize % 5], next() % (1 << 16));
            channel.entry(number).unwrap().store(entry.0, SeqCst);
            let slot = store + next() as usize % (end - store) / 64 * 64;
            unsafe { *(slot as *mut u64) = (((base / PAGE_SIZE + number) as u64) << 16) | (next() % 65536) };
            header.regions[0].first.store(if next() % 4 == 0 { next() } else { 0 }, SeqCst);
            header.regions[0].generation.store(next() % 3, SeqCst);
            header.wanted_count.store(next(), SeqCst);
            header.jobs[next() as usize % 64].state.store(1, SeqCst);
        }
    });
    for n in 0..2 {
        touch_and_drop(base, len, n);
    }
    say("ready");
    greeted
}

/// Memory in huge pages of which there are none: to look at it raises SIGBUS.
fn hugetlb(socket: &str) {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    let memory = unsafe { Fd::from_raw(libc::memfd_create(c"attack".as_ptr(), flags)) };
    let pages = (1..).step_by(512).find(|&pages| len_for(pages).is_multiple_of(2 << 20)).unwrap();
    if memfold_sys::file::set_len(memory.raw(), len_for(pages) as u64).is_err() {
        return say("skipped");
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    assert_eq!(unsafe { libc::fcntl(memory.raw(), libc::F_ADD_SEALS, seals) }, 0);
    let served = offer(socket, &memory, &uffd_with(Features::MOVE), pages);
    say(if served.is_some() { "served" } else { "refused" });
}
