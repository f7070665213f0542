//! Both sides of the daemon in one small program, which the tests start, kill and start again:
//!
//! - `memfold-served daemon SOCKET [BUDGET [METRICS [TOKEN-FILE]]]` is the daemon; SIGTERM ends it;
//! - `memfold-served work SOCKET GOAL SEED MIB` is a program that the daemon folds. It touches its memory, most of it seldom,
//!   registers and unregisters more, verifies every byte, and prints what came of it as `name value` lines. It works until its
//!   standard input is closed and its goal is reached;
//! - `memfold-served forks SOCKET` is one that forks while it is folded; its children verify every byte;
//! - `memfold-served liar SOCKET WHAT` is a program that breaks its promises;
//! - `memfold-served attack SOCKET WHAT` is one that tries to harm the daemon or others (`attacks.rs`);
//! - `memfold-served impostor SOCKET` listens there and serves nobody. It says when it listens, and of each connection how many bytes
//!   and descriptors came by it.

// Every address here lies in a mapping that the program itself made.
#![allow(clippy::undocumented_unsafe_blocks)]

mod attacks;

use memfold_client::{register, start, stats, stop, unregister, Options};
use memfold_daemon::channel::{len_for, Channel, Entry, State};
use memfold_daemon::governed::NoFleet;
use memfold_daemon::server;
use memfold_daemon::token::Token;
use memfold_daemon::wire::{Hello, VERSION};
use memfold_sys::pagemap::{self, Pagemap};
use memfold_sys::socket::{self, MOST_FDS};
use memfold_sys::uffd::{Features, Modes, Userfaultfd};
use memfold_sys::{mem, PAGE_SIZE};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: i32) {
    STOP.store(true, Relaxed);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["daemon", socket, ref rest @ ..] => be_daemon(socket, rest),
        ["work", socket, goal, seed, mib] => work(socket, Goal::of(goal), number(seed), number(mib) as usize),
        ["forks", socket] => forks(socket),
        ["liar", socket, what] => lie(socket, what),
        ["attack", socket, what] => attacks::attack(socket, what),
        ["impostor", socket] => impersonate(socket),
        _ => panic!(
            "daemon SOCKET, work SOCKET GOAL SEED MIB, forks SOCKET, liar SOCKET WHAT, attack SOCKET WHAT or impostor SOCKET"
        ),
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn be_daemon(socket: &str, rest: &[&str]) {
    unsafe { libc::signal(libc::SIGTERM, on_signal as extern "C" fn(i32) as usize) };
    let options = server::Options {
        socket: socket.into(),
        budget: rest.first().map(|text| number(text)).filter(|&bytes| bytes != 0),
        metrics: rest.get(1).map(|text| server::Metrics {
            at: text.parse().unwrap(),
            token: rest.get(2).map(|path| Token::read(path.as_ref()).unwrap()),
        }),
    };
    server::run(&options, Box::new(NoFleet), &STOP, |line| eprintln!("{line}")).unwrap();
}

fn content(seed: u64, page: u64) -> [u64; PAGE_SIZE / 8] {
    let first = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    std::array::from_fn(|n| if n % 4 == 0 { first.wrapping_add(n as u64) } else { n as u64 })
}

struct Memory {
    base: usize,
    pages: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        Memory { base: mem::map_anonymous(0, len, 0).unwrap(), pages: len / PAGE_SIZE }
    }

    fn write(&self, page: usize, seed: u64) {
        unsafe { *((self.base + page * PAGE_SIZE) as *mut _) = content(seed, page as u64) };
    }

    fn check(&self, page: usize, seed: u64) {
        let found = unsafe { *((self.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        assert!(found == content(seed, page as u64), "page {page} changed");
    }

    /// Pages in view, which looking does not change.
    fn present(&self) -> usize {
        let mut entries = vec![pagemap::Entry::default(); self.pages];
        assert_eq!(Pagemap::open().unwrap().entries(self.base, &mut entries).unwrap(), self.pages);
        entries.iter().filter(|entry| entry.present()).count()
    }

    fn register(&self) {
        register(self.base as *const u8, self.pages * PAGE_SIZE).unwrap();
    }

    fn unregister(&self) {
        unregister(self.base as *const u8, self.pages * PAGE_SIZE).unwrap();
    }
}

/// What a working program waits for.
#[derive(Clone, Copy)]
enum Goal {
    /// Nothing.
    Any,
    /// Pages have been folded and brought back.
    Restored,
    /// So many bytes have been folded at a time.
    Folded(u64),
    /// What had been folded has all come back.
    Retreated,
}

impl Goal {
    fn of(text: &str) -> Goal {
        match text {
            "any" => Goal::Any,
            "restored" => Goal::Restored,
            "retreated" => Goal::Retreated,
            bytes => Goal::Folded(number(bytes)),
        }
    }

    fn is_reached(self, most_folded: u64, folded: u64, restored: u64) -> bool {
        match self {
            Goal::Any => true,
            Goal::Restored => restored > 0,
            Goal::Folded(least) => folded >= least,
            Goal::Retreated => most_folded > 0 && folded == 0,
        }
    }
}

fn work(socket: &str, goal: Goal, seed: u64, mib: usize) {
    start(&Options::default().daemon(socket).cold_age(Duration::from_millis(60))).unwrap();
    let memory = Memory::new(mib << 20);
    (0..memory.pages).for_each(|page| memory.write(page, seed));
    memory.register();
    let (closed, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (longest, touches) = (AtomicU64::new(0), AtomicU64::new(0));
    let (folded, left) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Each touches pages of its own, so that it knows what they hold.
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            closed.store(true, Relaxed);
        });
        for thread in 0..2 {
            let over = &over;
            let (memory, longest, touches) = (&memory, &longest, &touches);
            scope.spawn(move || {
                let mut seeds = vec![seed; memory.pages];
                let mut random = seed * 2 + thread as u64 + 1;
                while !over.load(Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let anywhere = (random >> 33) as usize % (memory.pages / 2);
                    let page = 2 * if random.is_multiple_of(8) { anywhere } else { anywhere % 64 } + thread;
                    let touched = Instant::now();
                    memory.check(page, seeds[page]);
                    longest.fetch_max(touched.elapsed().as_millis() as u64, Relaxed);
                    if random.is_multiple_of(3) {
                        seeds[page] = random;
                        memory.write(page, random);
                    }
                    touches.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_micros(200));
                }
                (thread..memory.pages).step_by(2).for_each(|page| memory.check(page, seeds[page]));
            });
        }
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Relaxed) {
                round += 1;
                let more = Memory::new(2 << 20);
                more.register();
                (0..more.pages).for_each(|page| more.write(page, round));
                std::thread::sleep(Duration::from_millis(100 + round % 3 * 100));
                (0..more.pages).for_each(|page| more.check(page, round));
                // At the end everything is touched.
                left.store(stats().evicted_bytes, Relaxed);
                folded.fetch_max(left.load(Relaxed), Relaxed);
                let (most, now) = (folded.load(Relaxed), left.load(Relaxed));
                let reached = goal.is_reached(most, now, stats().pages_restored);
                over.store(closed.load(Relaxed) && reached, Relaxed);
                more.unregister();
                unsafe { mem::munmap(more.base, more.pages * PAGE_SIZE) }.unwrap();
            }
        });
    });
    let seen = stats();
    println!("folded {}", folded.load(Relaxed));
    println!("left {}", left.load(Relaxed));
    println!("restored {}", seen.pages_restored);
    println!("touches {}", touches.load(Relaxed));
    println!("longest_touch_ms {}", longest.load(Relaxed));
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let sum: u64 = (0..memory.pages)
            .map(|p| unsafe { *((memory.base + p * PAGE_SIZE) as *const u64) })
            .fold(0, u64::wrapping_add);
        unsafe { libc::_exit(i32::from(sum == 0)) };
    }
    let mut status = -1;
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "a child read zeros");
    stop().unwrap();
    println!("lost {}", stats().pages_lost);
}

fn forks(socket: &str) {
    start(&Options::default().daemon(socket).cold_age(Duration::from_millis(60))).unwrap();
    let memory = Memory::new(16 << 20);
    for round in 0..3 {
        // What was shared with a child can leave only once it was written.
        (0..memory.pages).for_each(|page| memory.write(page, round));
        if round == 0 {
            memory.register();
        }
        // If nothing is folded, the test ends us.
        while memory.present() > memory.pages / 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
        fork_and_check(&memory, round);
        // Nothing has left since.
        fork_and_check(&memory, round);
    }
    (0..memory.pages).for_each(|page| memory.check(page, 2));
    stop().unwrap();
    println!("lost {}", stats().pages_lost);
}

/// A child compares every byte.
fn fork_and_check(memory: &Memory, seed: u64) {
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs must not outlive the test.
        unsafe { libc::alarm(30) };
        let right = (0..memory.pages).all(|page| {
            let found = unsafe { *((memory.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
            found == content(seed, page as u64)
        });
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "a child read something else");
}

/// Greets properly, then does what no honest process does.
fn lie(socket: &str, what: &str) {
    let pages = 1024;
    let memory = socket::sealed_memory(c"liar", len_for(pages) as u64).unwrap();
    let uffd = Userfaultfd::open().unwrap();
    uffd.handshake(Features::MOVE).unwrap();
    let fd = socket::connect(socket.as_bytes()).unwrap();
    let fds = [memory.raw(), uffd.raw_fd()];
    let hello = Hello { version: VERSION, pages: pages as u64 };
    let greeting = hello.bytes();
    let send = |bytes: &[u8], fds: &[i32]| assert!(socket::send(fd.raw(), bytes, fds).is_ok());
    match what {
        "garbage" => send(&[0x5A; 100], &[]),
        "version" => send(&Hello { version: 99, ..hello }.bytes(), &fds),
        "huge" => send(&Hello { pages: u64::MAX, ..hello }.bytes(), &fds),
        "short" => send(&Hello { pages: 4096, ..hello }.bytes(), &fds),
        "unsealed" => {
            let raw = unsafe { libc::memfd_create(c"x".as_ptr(), 0) };
            memfold_sys::file::set_len(raw, len_for(pages) as u64).unwrap();
            send(&greeting, &[raw, fds[1]]);
        }
        "descriptors" => send(&greeting, &[fds[0], 1]),
        "few" => send(&greeting, &fds[..1]),
        "silent" => std::thread::sleep(Duration::from_secs(4)),
        "entries" => send(&greeting, &fds),
        other => panic!("no lie {other:?}"),
    }
    let mut answer = [0; 64];
    socket::wait_for([fd.raw()], memfold_sys::time::Nanos::from_secs(60));
    let len = socket::receive(fd.raw(), &mut answer, &mut [const { None }; MOST_FDS]).unwrap_or(0);
    if what == "entries" {
        assert_ne!(len, 0, "an honest greeting was refused");
        break_tables(&memory, &uffd, pages);
        memfold_daemon::wire::ring(fd.raw());
    }
    // The daemon ends the connection of a liar; it may have rung before.
    loop {
        socket::wait_for([fd.raw()], memfold_sys::time::Nanos::from_secs(60));
        match socket::hear(fd.raw(), &mut answer) {
            Ok(0) => break,
            Err(memfold_sys::Errno::EAGAIN) => panic!("the daemon goes on with a liar"),
            Err(_) => break,
            Ok(_) => {}
        }
    }
    println!("caught");
}

/// Takes what anybody sends, and answers nothing.
fn impersonate(socket: &str) {
    use std::os::fd::AsRawFd;
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std::fs::set_permissions(socket, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    println!("listening");
    for connection in listener.incoming() {
        let (mut buffer, mut fds) = ([0; 64], [const { None }; MOST_FDS]);
        let connection = connection.unwrap();
        socket::wait_for([connection.as_raw_fd()], memfold_sys::time::Nanos::from_secs(60));
        let bytes = socket::receive(connection.as_raw_fd(), &mut buffer, &mut fds).unwrap_or(0);
        println!("{bytes} bytes, {} descriptors", fds.iter().flatten().count());
    }
}

/// Entries that lead anywhere, jobs without end, regions over everything; then a touch.
fn break_tables(memory: &memfold_sys::file::Fd, uffd: &Userfaultfd, pages: usize) {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let base = unsafe { mem::mmap(0, len_for(pages), prot, libc::MAP_SHARED, memory.raw(), 0) }.unwrap();
    let channel = unsafe { Channel::at(base, pages) };
    let page = mem::map_anonymous(0, PAGE_SIZE, 0).unwrap();
    uffd.register(page, PAGE_SIZE, Modes::MISSING).unwrap();
    let header = channel.header();
    for (n, region) in header.regions.iter().enumerate() {
        region.first.store(if n == 0 { 0 } else { u64::MAX }, SeqCst);
        region.pages.store(u64::MAX, SeqCst);
        region.base.store(if n == 0 { page as u64 } else { 1 }, SeqCst);
    }
    for number in 0..pages {
        let entry = Entry::new(State::Stored, u64::MAX >> 4).0;
        channel.entry(number).unwrap().store(entry, SeqCst);
    }
    header.jobs.iter().for_each(|job| job.state.store(1, SeqCst));
    header.resident_limit.store(0, SeqCst);
    header.resident_bytes.store(u64::MAX, SeqCst);
    // Nobody serves it any more: the thread stays asleep and ends with the process.
    std::thread::spawn(move || unsafe { core::ptr::read_volatile(page as *const u8) });
}
