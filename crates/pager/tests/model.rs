//! The life of pages against a model: random operations of a program and of its operator on a few mappings, after
//! each of which memory must hold what a plain program's would.
//!
//! What it is not: a test of single operations; those have names in `life.rs`. Here it is their order, and what happens
//! at the same time, that matters. Some operations therefore have readers or a command under way beside them, so a
//! failure need not come back with the same seed.

#[path = "model/operations.rs"]
mod operations;

use memfold_pager::config::{Config, Setting};
use memfold_pager::control::Command;
use memfold_pager::{Engine, Host, Phase};
use memfold_sys::{mem, EXTENT_SIZE, PAGE_SIZE};
use operations::{op, page_of, Ask, Kind, Op, Span, SIZES, WORDS};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Longest time that one operation may take before the test counts as stuck.
const STUCK: Duration = Duration::from_secs(600);
/// Where in its extent each begins, in pages.
const STARTS: [usize; 3] = [256, 33, 512 - 77];

/// A mapping that the engine manages, and what it should hold.
struct Region {
    base: usize,
    expected: Vec<[u64; WORDS]>,
}

impl Region {
    /// An address `start` pages behind the beginning of an extent, with room for the mapping.
    fn place(pages: usize, start: usize) -> usize {
        let len = pages * PAGE_SIZE + 2 * EXTENT_SIZE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let room = unsafe { mem::mmap(0, len, libc::PROT_NONE, flags, -1, 0) }.unwrap();
        room.next_multiple_of(EXTENT_SIZE) + start * PAGE_SIZE
    }

    fn map(base: usize, pages: usize) -> memfold_sys::Result<usize> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: inside room that the caller reserved or owns.
        unsafe { mem::mmap(base, pages * PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
    }

    fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    fn page(&self, page: usize) -> &[AtomicU64; WORDS] {
        // SAFETY: mapped for the whole life of the region, and only ever reached by atomics.
        unsafe { &*(self.addr(page) as *const [AtomicU64; WORDS]) }
    }

    /// The first word of the page that is other than expected: its index and its value.
    fn wrong(&self, page: usize) -> Option<(usize, u64)> {
        let words = self.page(page).iter().map(|word| word.load(Relaxed));
        words
            .zip(&self.expected[page])
            .position(|(found, &expected)| found != expected)
            .map(|word| (word, self.page(page)[word].load(Relaxed)))
    }

    fn check(&self, pages: impl IntoIterator<Item = usize>) {
        for page in pages {
            if let Some((word, found)) = self.wrong(page) {
                let expected = self.expected[page][word];
                panic!(
                    "page {page} of {}: word {word} is {found:#x}, not {expected:#x}",
                    self.expected.len()
                );
            }
        }
    }

    fn write(&mut self, page: usize, content: [u64; WORDS]) {
        self.page(page).iter().zip(content).for_each(|(word, value)| word.store(value, Relaxed));
        self.expected[page] = content;
    }
}

struct World {
    engine: &'static Engine,
    regions: Vec<Region>,
}

/// When the operation under way began, in milliseconds since the first; 0 while there is none.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// Ends the process when an operation takes too long: a thread that sleeps in a page fault cannot be failed.
fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            let mut seen = (0, Instant::now());
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let now = BEGAN.load(Relaxed);
                if now == 0 || now != seen.0 {
                    seen = (now, Instant::now());
                } else if seen.1.elapsed() > STUCK {
                    eprintln!("an operation is stuck: somebody was not woken");
                    std::process::abort();
                }
            }
        });
    });
}

impl World {
    fn new() -> World {
        watch();
        BEGAN.fetch_add(1, Relaxed);
        let engine: &'static Engine = Box::leak(Box::new(Engine::new(Host {
            notice: |line| eprintln!("{line}"),
            open_control: |_| None,
            own_heap: || true,
            decay: || {},
            thread_cpu: |_, _| None,
            went_away: |_, _| {},
            sampler: None,
        })));
        let mut config = Config::default();
        config.set(Setting::ColdAge, 20_000_000);
        config.set(Setting::RecompressAge, 20_000_000);
        config.set(Setting::StartAt, 0);
        config.set(Setting::MaxStall, 1_000_000);
        config.set(Setting::MaxCpu, 1_000_000);
        engine.prepare(&config).unwrap();
        engine.enable();
        let regions = SIZES.iter().zip(STARTS).map(|(&pages, start)| {
            let base = Region::place(pages, start);
            Region::map(base, pages).unwrap();
            engine.mapped(base, pages * PAGE_SIZE);
            let mut region = Region { base, expected: vec![[0; WORDS]; pages] };
            for page in 0..pages {
                let kind = [Kind::Text, Kind::Zero, Kind::Text, Kind::Repeated, Kind::Random][page % 5];
                region.write(page, page_of(kind, (page * 7 + start) as u64));
            }
            region
        });
        let world = World { regions: regions.collect(), engine };
        let began = Instant::now();
        while engine.phase() != Phase::Running {
            assert!(began.elapsed() < STUCK, "the engine does not start: {:?}", engine.phase());
            std::thread::sleep(Duration::from_millis(1));
        }
        world
    }

    fn check_all(&self) {
        self.regions.iter().for_each(|region| region.check(0..region.expected.len()));
    }

    /// Puts a request into the mailbox; returns its ticket.
    fn ask(&self, ask: Ask) -> u32 {
        let (command, argument, value) = match ask {
            Ask::Evict => (Command::Evict, 0, 0),
            Ask::Restore => (Command::Restore, 0, 0),
            Ask::Pause => (Command::Pause, 0, 0),
            Ask::Resume => (Command::Resume, 0, 0),
            Ask::ColdAge { ms } => (Command::Set, Setting::ColdAge as u64, ms * 1_000_000),
        };
        let mailbox = &self.engine.control().mailbox;
        mailbox.command.store(command as u32, Relaxed);
        mailbox.argument.store(argument, Relaxed);
        mailbox.value.store(value, Relaxed);
        mailbox.asked.fetch_add(1, Release) + 1
    }

    fn is_answered(&self, ticket: u32) -> bool {
        self.engine.control().mailbox.answered.load(Acquire) == ticket
    }

    fn wait_for_answer(&self, ticket: u32) {
        while !self.is_answered(ticket) {
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(self.engine.control().mailbox.error.load(Relaxed), 0);
    }

    fn read_under(&self, ask: Ask) {
        let ticket = self.ask(ask);
        std::thread::scope(|scope| {
            for stride in [1, 31] {
                scope.spawn(move || loop {
                    for region in &self.regions {
                        let pages = region.expected.len();
                        region.check((0..pages).map(|n| n * stride % pages));
                    }
                    if self.is_answered(ticket) {
                        break;
                    }
                });
            }
        });
        self.wait_for_answer(ticket);
    }

    fn drop_contents(&self, span: Span, told: bool) {
        let (addr, len) = (self.regions[span.region].addr(span.lo), (span.hi - span.lo) * PAGE_SIZE);
        // SAFETY: a part of the region, whose contents the model drops too.
        let op = || unsafe { mem::madvise(addr, len, libc::MADV_DONTNEED) };
        if !told {
            // What the background thread restores ahead of a reader may cross the first drop that nobody announced: the
            // one case that the engine cannot rule out. Nobody reads now, so let it come to rest.
            self.wait_for_answer(self.ask(Ask::Pause));
            self.wait_for_answer(self.ask(Ask::Resume));
        }
        if told { self.engine.drop_contents(addr, len, op) } else { op() }.unwrap();
    }

    fn forget(&mut self, span: Span) {
        self.regions[span.region].expected[span.lo..span.hi].fill([0; WORDS]);
    }

    /// A reader sees a word as it was or zero; the last word is with the check after the drop.
    fn drop_under_readers(&mut self, span: Span, delay: Duration) {
        self.wait_for_answer(self.ask(Ask::Evict));
        let region = &self.regions[span.region];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for backwards in [false, true] {
                let over = &over;
                scope.spawn(move || {
                    let count = span.hi - span.lo;
                    for n in 0..count {
                        let page = if backwards { span.hi - 1 - n } else { span.lo + n };
                        for (found, &expected) in region.page(page).iter().zip(&region.expected[page]) {
                            let found = found.load(Relaxed);
                            assert!(found == expected || found == 0, "page {page}: {found:#x}");
                        }
                        if over.load(Relaxed) {
                            break;
                        }
                    }
                });
            }
            std::thread::sleep(delay);
            // The background thread restores too, and the kernel does not make it wait for the drop.
            let ticket = self.ask(Ask::Restore);
            for lo in (span.lo..span.hi).step_by(8) {
                self.drop_contents(Span { lo, hi: (lo + 8).min(span.hi), ..span }, true);
            }
            over.store(true, Relaxed);
            self.wait_for_answer(ticket);
        });
        self.forget(span);
    }

    fn map_anew(&mut self, span: Span) {
        let (addr, pages) = (self.regions[span.region].addr(span.lo), span.hi - span.lo);
        self.engine.unmap(addr, pages * PAGE_SIZE, || Region::map(addr, pages)).unwrap();
        self.engine.mapped(addr, pages * PAGE_SIZE);
        self.forget(span);
    }

    fn protect(&self, span: Span, prot: i32) {
        let region = &self.regions[span.region];
        let (addr, len) = (region.addr(span.lo), (span.hi - span.lo) * PAGE_SIZE);
        // SAFETY: a part of the region, which nobody uses otherwise before the old protection is back.
        let set = |prot| move || unsafe { mem::mprotect(addr, len, prot) };
        self.engine.protect(addr, len, false, set(prot)).unwrap();
        self.wait_for_answer(self.ask(Ask::Evict));
        if prot == libc::PROT_READ {
            region.check((span.lo..span.hi).step_by(3));
        }
        self.engine.protect(addr, len, true, set(libc::PROT_READ | libc::PROT_WRITE)).unwrap();
    }

    /// The kernel may refuse, where it has the range as several mappings; then nothing must have happened.
    fn move_region(&mut self, region: usize, start: usize) {
        let region = &mut self.regions[region];
        let (from, pages) = (region.base, region.expected.len());
        let (len, target) = (pages * PAGE_SIZE, Region::place(pages, start));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the region moves to room reserved for it.
        let call = || unsafe { mem::mremap(from, len, len, flags, target) };
        if let Ok(moved) = self.engine.remap(from, len, len, Some(target), call) {
            assert_eq!(moved, target);
            region.base = moved;
        }
    }

    fn fork_under_readers(&self, delay: Duration) {
        self.wait_for_answer(self.ask(Ask::Evict));
        std::thread::scope(|scope| {
            for stride in [1, 31] {
                scope.spawn(move || {
                    for region in &self.regions {
                        let pages = region.expected.len();
                        region.check((0..pages).map(|n| n * stride % pages));
                    }
                });
            }
            std::thread::sleep(delay);
            self.fork();
        });
    }

    fn fork(&self) {
        self.engine.before_fork();
        // SAFETY: the child runs nothing but the engine's own code and reads, and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: plain system calls. A child that is stuck must not outlive the test.
            unsafe { libc::alarm(10) };
            self.engine.after_fork_in_child();
            let wrong =
                self.regions.iter().any(|r| (0..r.expected.len()).any(|page| r.wrong(page).is_some()));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(wrong)) };
        }
        self.engine.after_fork_in_parent();
        assert!(pid > 0);
        self.check_all();
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "the child found other bytes, or died");
    }

    fn apply(&mut self, op: Op) {
        BEGAN.fetch_add(1, Relaxed);
        match op {
            Op::Write { at, word, value } => {
                let region = &mut self.regions[at.region];
                region.page(at.lo)[word].store(value, Relaxed);
                region.expected[at.lo][word] = value;
                region.check([at.lo]);
            }
            Op::Fill { span, kind, seed } => {
                let region = &mut self.regions[span.region];
                (span.lo..span.hi).for_each(|page| region.write(page, page_of(kind, seed ^ page as u64)));
            }
            Op::Read(span) => self.regions[span.region].check(span.lo..span.hi),
            Op::ReadAll => self.check_all(),
            Op::Drop { span, told } => {
                self.drop_contents(span, told);
                self.forget(span);
            }
            Op::DropUnderReaders { span, delay_us } => {
                self.drop_under_readers(span, Duration::from_micros(delay_us));
                self.regions[span.region].check(span.lo..span.hi);
            }
            Op::MapAnew(span) => self.map_anew(span),
            Op::Protect { span, prot } => self.protect(span, prot),
            Op::Move { region, start } => self.move_region(region, start),
            Op::Fork => self.fork(),
            Op::ForkUnderEviction { delay_us } => {
                let ticket = self.ask(Ask::Evict);
                std::thread::sleep(Duration::from_micros(delay_us));
                self.fork();
                self.wait_for_answer(ticket);
            }
            Op::ForkUnderReaders { delay_us } => self.fork_under_readers(Duration::from_micros(delay_us)),
            Op::Ask(ask) => self.wait_for_answer(self.ask(ask)),
            Op::ReadUnder(ask) => self.read_under(ask),
            Op::Rest { ms } => std::thread::sleep(Duration::from_millis(ms)),
        }
    }

    fn end(self) {
        BEGAN.fetch_add(1, Relaxed);
        self.check_all();
        self.engine.stop(&"the test is over");
        assert_eq!(self.engine.phase(), Phase::Off);
        self.check_all();
        assert_eq!(self.engine.control().pages_lost.load(Relaxed), 0);
        for region in &self.regions {
            // SAFETY: the world ends with its regions.
            unsafe { mem::munmap(region.base, region.expected.len() * PAGE_SIZE) }.unwrap();
        }
        BEGAN.store(0, Relaxed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        max_shrink_time: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]
    #[test]
    fn memory_holds_what_a_plain_program_would_find_there(ops in prop::collection::vec(op(), 30..80)) {
        let mut world = World::new();
        ops.into_iter().for_each(|op| world.apply(op));
        world.end();
    }
}
