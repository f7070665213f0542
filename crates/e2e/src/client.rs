//! Programs that use the explicit API, as the tests start them under a daemon.
//!
//! - `memfold-e2e client SOCKET GOAL SEED MIB` touches its memory, most of it seldom; registers more that comes and goes, unmapped as it is as
//!   often as not; verifies every byte, and prints what came of it as `name value` lines. It works until its standard input is closed and its
//!   goal is reached.
//! - `memfold-e2e client-forks SOCKET` forks while it is folded. Its children verify every byte, are folded themselves, and verify again.
//!
//! What they are not: measurements. They panic at the first byte that is not what was written.

use memfold_client::{register, start, stats, stop, unregister, Options};
use memfold_sys::pagemap::{self, Pagemap};
use memfold_sys::{mem, PAGE_SIZE};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Ranges that are registered one by one and touched at the end only.
const MANY: u64 = 200;

fn content(seed: u64, page: u64) -> [u64; PAGE_SIZE / 8] {
    let first = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    std::array::from_fn(|n| if n % 4 == 0 { first.wrapping_add(n as u64) } else { n as u64 })
}

/// A mapping of its own, of which nothing but this refers to any byte; it stays until it is unmapped.
struct Memory {
    base: usize,
    pages: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        let memory = Memory { base: mem::map_anonymous(0, len, 0).expect("memory"), pages: len / PAGE_SIZE };
        // Parts of a huge page are not moved.
        // SAFETY: changes no contents.
        let _ = unsafe { mem::madvise(memory.base, len, libc::MADV_NOHUGEPAGE) };
        memory
    }

    fn filled(len: usize, seed: u64) -> Memory {
        let memory = Memory::new(len);
        (0..memory.pages).for_each(|page| memory.write(page, seed));
        memory
    }

    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }

    fn write(&self, page: usize, seed: u64) {
        // SAFETY: a page of the mapping, which one thread at a time uses.
        unsafe { *((self.base + page * PAGE_SIZE) as *mut _) = content(seed, page as u64) };
    }

    fn is_right(&self, page: usize, seed: u64) -> bool {
        // SAFETY: as above.
        let found = unsafe { *((self.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        found == content(seed, page as u64)
    }

    fn check(&self, page: usize, seed: u64) {
        assert!(self.is_right(page, seed), "page {page} changed");
    }

    fn is_all(&self, seed: u64) -> bool {
        (0..self.pages).all(|page| self.is_right(page, seed))
    }

    /// Pages in view, which looking does not change.
    fn present(&self) -> usize {
        let mut entries = vec![pagemap::Entry::default(); self.pages];
        let known = Pagemap::open().and_then(|map| map.entries(self.base, &mut entries));
        assert_eq!(known, Ok(self.pages));
        entries.iter().filter(|entry| entry.present()).count()
    }

    /// Waits until most of it is folded. A test that waits for ever ends us.
    fn wait_until_folded(&self) {
        while self.present() > self.pages / 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn register(&self) {
        register(self.base as *const u8, self.len()).expect("memory to register");
    }

    fn unmap(self) {
        // SAFETY: our own mapping, which is not used any more.
        unsafe { mem::munmap(self.base, self.len()) }.expect("a mapping to unmap");
    }
}

/// What a working program waits for.
#[derive(Clone, Copy)]
pub enum Goal {
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
    /// `any`, `restored`, `retreated` or a number of bytes; `None` for anything else.
    pub fn of(text: &str) -> Option<Goal> {
        Some(match text {
            "any" => Goal::Any,
            "restored" => Goal::Restored,
            "retreated" => Goal::Retreated,
            bytes => Goal::Folded(bytes.parse().ok()?),
        })
    }

    fn is_reached(self, most_folded: u64, folded: u64, restored: u64) -> bool {
        match self {
            Goal::Any => true,
            Goal::Restored => restored > 0,
            Goal::Folded(least) => most_folded >= least,
            // Between two looks it may have come and gone.
            Goal::Retreated => restored > 0 && folded == 0,
        }
    }
}

/// What the threads of a working program tell each other.
#[derive(Default)]
struct Shared {
    closed: AtomicBool,
    over: AtomicBool,
    longest_ms: AtomicU64,
    touches: AtomicU64,
    /// Bytes that were folded, most at a time and last.
    folded: AtomicU64,
    left: AtomicU64,
}

/// The program that works.
///
/// # Panics
/// A byte is not what was written, or the library refuses what it should do.
pub fn work(socket: &str, goal: Goal, seed: u64, mib: usize) {
    start(&Options::default().daemon(socket)).expect("memory can be folded");
    // What is never touched does not come back by itself.
    let count = if matches!(goal, Goal::Retreated) { 0 } else { MANY };
    let many: Vec<Memory> = (0..count).map(|n| Memory::filled(8 * PAGE_SIZE, n)).collect();
    many.iter().for_each(Memory::register);
    let memory = Memory::filled(mib << 20, seed);
    memory.register();
    let shared = Shared::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            shared.closed.store(true, Relaxed);
        });
        // Each touches pages of its own, so that it knows what they hold.
        for thread in 0..2 {
            let (memory, shared) = (&memory, &shared);
            scope.spawn(move || touch(memory, shared, seed, thread));
        }
        scope.spawn(|| come_and_go(&shared, goal));
    });
    assert!(many.iter().zip(0..).all(|(memory, n)| memory.is_all(n)), "one of many ranges changed");
    let seen = stats();
    println!("folded {}", shared.folded.load(Relaxed));
    println!("left {}", shared.left.load(Relaxed));
    println!("restored {}", seen.pages_restored);
    println!("touches {}", shared.touches.load(Relaxed));
    println!("longest_touch_ms {}", shared.longest_ms.load(Relaxed));
    stop().expect("it was started");
    assert_eq!(memory.present(), memory.pages, "not all of it came back");
    println!("lost {}", stats().pages_lost);
}

/// Touches every second page from `thread` on, the first ones more often.
fn touch(memory: &Memory, shared: &Shared, seed: u64, thread: usize) {
    let mut seeds = vec![seed; memory.pages];
    let mut random = seed * 2 + thread as u64 + 1;
    while !shared.over.load(Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let anywhere = (random >> 33) as usize % (memory.pages / 2);
        let page = 2 * if random.is_multiple_of(8) { anywhere } else { anywhere % 64 } + thread;
        let touched = Instant::now();
        memory.check(page, seeds[page]);
        shared.longest_ms.fetch_max(touched.elapsed().as_millis() as u64, Relaxed);
        if random.is_multiple_of(3) {
            seeds[page] = random;
            memory.write(page, random);
        }
        shared.touches.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_micros(200));
    }
    (thread..memory.pages).step_by(2).for_each(|page| memory.check(page, seeds[page]));
}

/// Memory that comes, is folded or not, and goes in every way there is. Says when it is over.
fn come_and_go(shared: &Shared, goal: Goal) {
    let mut round = 0;
    while !shared.over.load(Relaxed) {
        round += 1;
        let more = Memory::new(2 << 20);
        more.register();
        (0..more.pages).for_each(|page| more.write(page, round));
        std::thread::sleep(Duration::from_millis(100 + round % 3 * 100));
        if round % 4 != 3 {
            assert!(more.is_all(round), "a range that came changed");
        }
        // At the end everything is touched.
        let seen = stats();
        shared.left.store(seen.evicted_bytes, Relaxed);
        let most = shared.folded.fetch_max(seen.evicted_bytes, Relaxed).max(seen.evicted_bytes);
        let reached = goal.is_reached(most, seen.evicted_bytes, seen.pages_restored);
        shared.over.store(shared.closed.load(Relaxed) && reached, Relaxed);
        match round % 4 {
            0 => unregister(more.base as *const u8, more.len()).expect("it was registered"),
            1 => {
                // SAFETY: what it holds is not used any more.
                unsafe { mem::madvise(more.base, more.len(), libc::MADV_DONTNEED) }.expect("memory to drop");
                // SAFETY: the first word of the mapping.
                assert_eq!(unsafe { *(more.base as *const u64) }, 0, "dropped memory came back");
            }
            // Unmapped as it is: read just before, or folded for as long as it has been there.
            _ => {}
        }
        more.unmap();
    }
}

/// The program that forks.
///
/// # Panics
/// A child does not find what was written, or the library refuses what it should do.
pub fn fork_again_and_again(socket: &str) {
    start(&Options::default().daemon(socket)).expect("memory can be folded");
    let memory = Memory::new(16 << 20);
    for round in 0..3 {
        // What was shared with a child can leave only once it was written.
        (0..memory.pages).for_each(|page| memory.write(page, round));
        if round == 0 {
            memory.register();
        }
        memory.wait_until_folded();
        fork_and_check(&memory, round, false);
        // Nothing has left since.
        fork_and_check(&memory, round, true);
    }
    assert!(memory.is_all(2), "a page changed");
    println!("children 6");
    stop().expect("it was started");
    println!("lost {}", stats().pages_lost);
}

/// A child compares every byte. If it is to be folded it then writes anew, waits until that has happened, and compares again.
fn fork_and_check(memory: &Memory, seed: u64, folds: bool) {
    // SAFETY: the child uses the library and its own memory, and ends without returning.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs must not outlive the test.
        // SAFETY: no memory involved.
        unsafe { libc::alarm(90) };
        let mut right = memory.is_all(seed);
        if folds {
            (0..memory.pages).for_each(|page| memory.write(page, seed + 100));
            memory.wait_until_folded();
            right &= stats().running == 1 && memory.is_all(seed + 100) && stats().pages_lost == 0;
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "a child read something else");
}
