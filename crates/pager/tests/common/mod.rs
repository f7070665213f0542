//! What the tests of a real engine share: an engine, memory that it manages, and what that memory holds.

// Every address here lies in a mapping that the test itself made and holds. Not every test uses everything.
#![allow(clippy::undocumented_unsafe_blocks, dead_code)]

use memfold_pager::config::{Config, Setting};
use memfold_pager::control::Command;
use memfold_pager::why::Why;
use memfold_pager::{Engine, Host, Phase};
use memfold_sys::{mem, EXTENT_SIZE, PAGE_SIZE};
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const MIB: usize = 1 << 20;

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static MINE: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Lets the tests of a program run one after another, each until its thread ends: they fork the whole process, and
/// leave holes that the mapping of another would fill; and an engine's background thread, which is the last to get
/// the CPU, should not wait for the other tests.
pub fn take_turn() {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// A running engine. Only one test at a time has any.
pub fn engine(cold_age_ms: u64) -> &'static Engine {
    engine_with(cold_age_ms, u64::MAX)
}

/// The same in haste: a limit on resident memory is kept, of which nobody comes near. So pages are compressed by the fastest codec when
/// they go, however idle the machine, and again by the strong one later.
pub fn engine_in_haste(cold_age_ms: u64) -> &'static Engine {
    engine_with(cold_age_ms, 1 << 40)
}

/// The same with a limit on resident memory, bytes.
pub fn engine_with(cold_age_ms: u64, limit: u64) -> &'static Engine {
    engine_of(cold_age_ms, limit, "")
}

/// The same with a tier below memory, if one is named.
pub fn engine_of(cold_age_ms: u64, limit: u64, tier: &str) -> &'static Engine {
    engine_beside(cold_age_ms, limit, tier, "")
}

/// The same with a tier on the network, whose process listens in the directory `beside`.
pub fn engine_beside(cold_age_ms: u64, limit: u64, tier: &str, beside: &str) -> &'static Engine {
    engine_whose_allocator(|| (), cold_age_ms, limit, tier, beside)
}

/// The same whose allocator gives back its idle memory like this.
pub fn engine_whose_allocator(
    decay: fn(),
    cold_age_ms: u64,
    limit: u64,
    tier: &str,
    beside: &str,
) -> &'static Engine {
    take_turn();
    let engine: &'static Engine = Box::leak(Box::new(Engine::new(Host {
        // On a thread that has nothing of the standard library's.
        notice: |line| {
            let _ = memfold_sys::file::write_all(2, line.as_bytes());
        },
        open_control: |_| None,
        thread_cpu: |_, _| None,
        went_away: |_, _| {},
        sampler: None,
        own_heap: || true,
        decay,
    })));
    let mut config = Config::default();
    config.set(Setting::ColdAge, cold_age_ms * 1_000_000);
    config.set(Setting::RecompressAge, cold_age_ms * 1_000_000);
    config.set(Setting::StartAt, 0);
    config.set(Setting::MaxStall, 1_000_000);
    config.set(Setting::MaxCpu, 1_000_000);
    config.set(Setting::ResidentLimit, limit);
    engine.prepare(&config).unwrap();
    if !tier.is_empty() {
        assert_eq!(engine.use_tier(tier, beside), Ok(()));
    }
    engine.enable();
    engine
}

pub fn content(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    let mut state = seed ^ (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::array::from_fn(|i| {
        if i % 4 != 0 {
            return (i as u64) << 3;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 0xFFFF
    })
}

/// What a page holds that no codec makes shorter.
pub fn dense(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    let mut state = (seed << 32) | (page as u64 + 1);
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

/// A mapping that the engine manages, and what it should hold.
pub struct Memory {
    pub base: usize,
    pub pages: usize,
}

impl Memory {
    /// It begins with an extent: else, by chance, so few pages of it could lie in its first or last that they are not worth its tables.
    pub fn new(engine: &'static Engine, len: usize) -> Memory {
        let base = mem::reserve_aligned(len, EXTENT_SIZE).unwrap();
        unsafe { mem::mprotect(base, len, libc::PROT_READ | libc::PROT_WRITE) }.unwrap();
        engine.mapped(base, len);
        Memory { base, pages: len / PAGE_SIZE }
    }

    /// Never huge: under `transparent_hugepage=always` one touch would make 512 pages present, and a huge page of zeros
    /// that is split becomes the shared zero page (Linux 6.12 and later), which nobody need evict.
    pub fn in_small_pages(self) -> Memory {
        unsafe { mem::madvise(self.base, self.pages * PAGE_SIZE, libc::MADV_NOHUGEPAGE) }.unwrap();
        self
    }

    /// Huge where the kernel has such, whatever it does by itself.
    pub fn in_huge_pages(self) -> Memory {
        let _ = unsafe { mem::madvise(self.base, self.pages * PAGE_SIZE, libc::MADV_HUGEPAGE) };
        self
    }

    pub fn fill(&self, seed: u64) {
        self.fill_with(|page| content(seed, page));
    }

    pub fn fill_with(&self, words: impl Fn(usize) -> [u64; PAGE_SIZE / 8]) {
        for page in 0..self.pages {
            unsafe { *((self.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = words(page) };
        }
    }

    /// That every page holds what it was filled with.
    pub fn check_with(&self, words: impl Fn(usize) -> [u64; PAGE_SIZE / 8]) {
        for page in 0..self.pages {
            assert!(page_at(self.base + page * PAGE_SIZE) == words(page), "page {page} changed");
        }
    }

    pub fn check_page(&self, seed: u64, page: usize) {
        let at = self.base + page * PAGE_SIZE;
        let (found, wanted) = (page_at(at), content(seed, page));
        let changed = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
        let begin = |words: &[u64]| format!("{:x?}", &words[..4]);
        assert!(
            changed == 0,
            "page {page} of {seed} changed in {changed} words: {} for {}; now {}",
            begin(&found),
            begin(&wanted),
            begin(&page_at(at))
        );
    }

    pub fn check(&self, seed: u64) {
        (0..self.pages).for_each(|page| self.check_page(seed, page));
    }
}

/// Who has not come by then never comes, also where a hundred others want the CPU.
const PATIENCE: Duration = Duration::from_secs(600);

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn evicted(engine: &'static Engine) -> u64 {
    engine.control().evicted_bytes.load(Relaxed)
}

/// So few pages may be left over, before it is asked why.
const FEW: usize = 64;

/// Waits until so many bytes are away; where that does not come, says what keeps the rest. The last few pages of memory in an
/// extent are worth no call to the kernel, and leave when they are told to, if others did.
pub fn wait_until_evicted(engine: &'static Engine, bytes: usize) {
    let began = Instant::now();
    while evicted(engine) != bytes as u64 {
        let rest = bytes.saturating_sub(evicted(engine) as usize) / PAGE_SIZE;
        if rest <= FEW && kept(engine, Why::Few) >= rest {
            have(engine, Command::Evict);
        }
        if began.elapsed() > PATIENCE {
            let all = Why::ALL.iter().map(|&why| (why.name(), kept(engine, why)));
            let reasons: Vec<_> = all.filter(|(_, pages)| *pages != 0).collect();
            let aside = engine.control().aside_bytes.load(Relaxed);
            panic!("never: {bytes} bytes are evicted: {rest} pages are not, {aside} bytes are set aside, pages stay for {reasons:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An engine with `len` bytes of filled memory, all of which is away.
pub fn evicted_memory(len: usize, seed: u64) -> (&'static Engine, Memory) {
    let engine = engine(20);
    let memory = Memory::new(engine, len);
    memory.fill(seed);
    wait_until_evicted(engine, len);
    (engine, memory)
}

/// Anonymous memory of this process that is resident, by the kernel's own count, bytes.
pub fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What a page holds.
pub fn page_at(addr: usize) -> [u64; PAGE_SIZE / 8] {
    unsafe { *(addr as *const [u64; PAGE_SIZE / 8]) }
}

/// Forks as the preload library does.
pub fn fork(engine: &'static Engine) -> i32 {
    engine.before_fork();
    match unsafe { libc::fork() } {
        0 => {
            // A child that hangs must not outlive the test.
            unsafe { libc::alarm(300) };
            engine.after_fork_in_child();
            0
        }
        pid => {
            engine.after_fork_in_parent();
            pid
        }
    }
}

/// Waits for a child; its status.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Puts a request into the engine's mailbox; returns its ticket.
pub fn ask(engine: &'static Engine, command: Command) -> u32 {
    let mailbox = &engine.control().mailbox;
    mailbox.command.store(command as u32, Relaxed);
    mailbox.asked.fetch_add(1, Release) + 1
}

/// Whether the request was carried out.
pub fn answered(engine: &'static Engine, ticket: u32) -> bool {
    engine.control().mailbox.answered.load(Acquire) == ticket
}

/// Has the request carried out.
pub fn have(engine: &'static Engine, command: Command) {
    let ticket = ask(engine, command);
    wait_until("the request is carried out", || answered(engine, ticket));
}

/// Resident pages of the process that are kept for this reason.
pub fn kept(engine: &'static Engine, why: Why) -> usize {
    have(engine, Command::Inventory);
    engine.control().inventory.bytes[why as usize].load(Relaxed) as usize / PAGE_SIZE
}

/// Has a request with arguments carried out; returns the error.
pub fn request(engine: &'static Engine, command: Command, argument: u64, value: u64, text: &str) -> u32 {
    let control = engine.control();
    control.mailbox.argument.store(argument, Relaxed);
    control.mailbox.value.store(value, Relaxed);
    control.request.set(text);
    have(engine, command);
    control.mailbox.error.load(Relaxed)
}

/// An engine that evicts by `policy` down to `limit` pages, and memory of `pages`, never touched.
pub fn policed(policy: &str, limit: usize, pages: usize, paused: bool) -> (&'static Engine, Memory) {
    // A daemon's tables come from the global allocator, which is libc's here, on a thread without libc's thread-local data.
    // The ninth arena would have it count the CPUs, which needs those.
    assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
    let engine = engine(86_400_000);
    let memory = Memory::new(engine, pages * PAGE_SIZE);
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    if paused {
        have(engine, Command::Pause);
    }
    let bytes = (limit * PAGE_SIZE) as u64;
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, bytes, ""), 0);
    assert_eq!(request(engine, Command::Policy, 0, 0, policy), 0);
    (engine, memory)
}

/// An engine with a tier in a directory of its own, in which what was stored goes down at once.
pub fn engine_with_tier(size: &str) -> (&'static Engine, tempfile::TempDir) {
    engine_with_tier_for(20, size)
}

/// The same with a cold age, ms.
pub fn engine_with_tier_for(cold_age: u64, size: &str) -> (&'static Engine, tempfile::TempDir) {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},after=10ms,size={size}", directory.path().display());
    (engine_of(cold_age, u64::MAX, &tier), directory)
}

/// The same with a tier that is not sealed.
pub fn engine_with_unsealed_tier(cold_age: u64, size: &str) -> (&'static Engine, tempfile::TempDir) {
    engine_with_tier_for(cold_age, &format!("{size},seal=no"))
}

/// The files in the directory that this process has open: they have no names there.
pub fn files_in(directory: &tempfile::TempDir) -> Vec<File> {
    let of_thread = |task: PathBuf| fs::read_dir(task.join("fd")).into_iter().flatten().flatten();
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let links = tasks.flat_map(|task| of_thread(task.path())).map(|entry| entry.path());
    let mut seen = std::collections::BTreeSet::new();
    links
        .filter(|link| fs::read_link(link).is_ok_and(|path| path.starts_with(directory.path())))
        .filter(|link| seen.insert(fs::read_link(link).unwrap()))
        // What is closed meanwhile is there no more.
        .filter_map(|link| OpenOptions::new().read(true).write(true).open(link).ok())
        .collect()
}

/// Bytes of pages that lie below memory.
pub fn below(engine: &Engine) -> u64 {
    engine.control().tier_bytes.load(Relaxed)
}

/// An engine with a tier and `len` bytes of filled memory, all of which went down.
pub fn memory_below(len: usize, seed: u64) -> (&'static Engine, Memory, tempfile::TempDir) {
    let (engine, directory) = engine_with_tier("1G");
    let memory = Memory::new(engine, len);
    memory.fill(seed);
    wait_until("everything went down", || below(engine) == len as u64);
    (engine, memory, directory)
}
