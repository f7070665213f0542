//! The life of pages in a real engine on real memory: evicted, touched, dropped, moved, forked.

// Every address here lies in a mapping that the test itself made and holds, or is being taken away from under it
// on purpose, which is what the tests are about.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::why::Why;
use memfold_pager::{Engine, Phase};
use memfold_sys::{mem, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

#[test]
fn untouched_pages_are_evicted_and_come_back_unchanged() {
    let engine = engine(40);
    let memory = Memory::new(engine, 64 * MIB);
    memory.fill(1);
    wait_until("everything is evicted", || evicted(engine) >= 63 * MIB as u64);
    let control = engine.control();
    // The gauges follow each other.
    wait_until("that has saved memory", || control.saved_bytes.load(Relaxed) > 30 * MIB as u64);
    memory.check(1);
    wait_until("everything is evicted again", || evicted(engine) >= 60 * MIB as u64);
    memory.check(1);
    assert_eq!(control.pages_lost.load(Relaxed), 0);
    engine.stop(&"the test is over");
    assert_eq!(engine.phase(), Phase::Off);
    memory.check(1);
}

#[test]
fn a_pager_ends_that_is_stopped_as_soon_as_it_runs() {
    let engine = engine(20);
    let memory = Memory::new(engine, MIB);
    wait_until("it runs", || engine.phase() == Phase::Running);
    engine.stop(&"the test is over");
    assert_eq!(engine.phase(), Phase::Off);
    memory.fill(1);
    memory.check(1);
}

#[test]
fn many_threads_that_touch_the_same_pages_all_see_their_bytes() {
    let (engine, memory) = evicted_memory(16 * MIB, 2);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for n in 0..memory.pages {
                        let page = if thread % 2 == 0 { n } else { (n * 1031) % memory.pages };
                        memory.check_page(2, page);
                    }
                });
            }
        });
        wait_until("it is evicted again", || evicted(engine) >= 15 * MIB as u64);
    }
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn a_page_that_was_dropped_while_evicted_reads_as_zeros() {
    let (engine, memory) = evicted_memory(8 * MIB, 3);
    let (lo, hi) = (100, 900);
    engine
        .drop_contents(memory.base + lo * PAGE_SIZE, (hi - lo) * PAGE_SIZE, || unsafe {
            mem::madvise(memory.base + lo * PAGE_SIZE, (hi - lo) * PAGE_SIZE, libc::MADV_DONTNEED)
        })
        .unwrap();
    for page in 0..memory.pages {
        let found = unsafe { *((memory.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        if (lo..hi).contains(&page) {
            assert!(found == [0; PAGE_SIZE / 8], "page {page} came back from the dead");
        } else {
            assert!(found == content(3, page));
        }
    }
}

#[test]
fn a_drop_past_libc_is_seen_too() {
    let (_engine, memory) = evicted_memory(8 * MIB, 4);
    unsafe { mem::madvise(memory.base, 4 * MIB, libc::MADV_DONTNEED) }.unwrap();
    for page in 0..memory.pages {
        let found = unsafe { *((memory.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        assert!(found == if page < memory.pages / 2 { [0; PAGE_SIZE / 8] } else { content(4, page) });
    }
}

#[test]
fn who_reads_on_waits_for_few_pages_and_who_jumps_gets_what_it_touches() {
    let (engine, memory) = evicted_memory(8 * MIB, 30);
    let control = engine.control();
    let counts = || {
        let came = control.pages_restored.load(Relaxed) + control.pages_second_chance.load(Relaxed);
        [control.fault_ns.count.load(Relaxed), came, control.pages_prefetched.load(Relaxed)]
    };
    let hour = 3_600_000_000_000;
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, hour, ""), 0);
    let at_first = counts();
    let since = || {
        let now = counts();
        [0, 1, 2].map(|n| now[n] - at_first[n])
    };
    let half = memory.pages / 2;
    let touch = |page: usize| assert!(page_at(memory.base + page * PAGE_SIZE) == content(30, page));
    (0..half).step_by(3).for_each(touch);
    let touched = half.div_ceil(3) as u64;
    // Who touched goes on before its wait is counted.
    wait_until("each wait is counted", || since()[0] >= touched);
    assert_eq!(since(), [touched, touched, 0]);
    (half..memory.pages).for_each(touch);
    let [faults, came, ahead] = since();
    assert!(came >= touched + half as u64, "{came} of {half} pages came");
    assert!((faults - touched) * 2 < half as u64, "{} waits, {ahead} ahead", faults - touched);
}

#[test]
fn memory_mapped_where_evicted_memory_was_is_new() {
    let (engine, memory) = evicted_memory(8 * MIB, 5);
    let fixed = |addr: usize, len: usize| unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        mem::mmap(addr, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    let (a, b) = (memory.base + MIB, memory.base + 5 * MIB);
    engine.unmap(a, MIB, || fixed(a, MIB)).unwrap();
    engine.mapped(a, MIB);
    fixed(b, MIB).unwrap();
    for page in 0..memory.pages {
        let addr = memory.base + page * PAGE_SIZE;
        let found = unsafe { *(addr as *const [u64; PAGE_SIZE / 8]) };
        let is_new = (a..a + MIB).contains(&addr) || (b..b + MIB).contains(&addr);
        assert!(found == if is_new { [0; PAGE_SIZE / 8] } else { content(5, page) }, "page {page}");
    }
}

#[test]
fn evicted_memory_follows_however_often_it_is_moved_before_the_pager_has_followed() {
    let (engine, memory) = evicted_memory(8 * MIB, 17);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let mut at = memory.base;
    for _ in 0..5 {
        let to = mem::map_anonymous(0, 8 * MIB, 0).unwrap();
        unsafe { mem::mremap(at, 8 * MIB, 8 * MIB, flags, to) }.unwrap();
        at = to;
    }
    // The second half once more, by itself, and a part of the first dropped.
    let to = mem::map_anonymous(0, 4 * MIB, 0).unwrap();
    unsafe { mem::mremap(at + 4 * MIB, 4 * MIB, 4 * MIB, flags, to) }.unwrap();
    unsafe { mem::madvise(at + MIB, MIB, libc::MADV_DONTNEED) }.unwrap();
    let half = memory.pages / 2;
    let dropped = MIB / PAGE_SIZE..2 * MIB / PAGE_SIZE;
    for (base, first) in [(at, 0), (to, half)] {
        for page in first..first + half {
            let expected = if dropped.contains(&page) { [0; PAGE_SIZE / 8] } else { content(17, page) };
            assert!(page_at(base + (page - first) * PAGE_SIZE) == expected, "page {page}");
        }
    }
    engine.stop(&"the test is over");
}

#[test]
fn evicted_memory_follows_an_mremap_whoever_makes_it() {
    for past_libc in [false, true] {
        let (engine, mut memory) = evicted_memory(8 * MIB, 6);
        let target = mem::map_anonymous(0, 9 * MIB, 0).unwrap() + PAGE_SIZE;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let call = || unsafe { mem::mremap(memory.base, 8 * MIB, 8 * MIB, flags, target) };
        let moved =
            if past_libc { call() } else { engine.remap(memory.base, 8 * MIB, 8 * MIB, Some(target), call) };
        memory.base = moved.unwrap();
        assert_eq!(memory.base, target);
        memory.check(6);
        assert_eq!(engine.is_managed(target, 8 * MIB), !past_libc);
    }
}

#[test]
fn a_forked_child_and_its_child_find_every_byte_and_so_does_the_parent() {
    let (engine, memory) = evicted_memory(16 * MIB, 7);
    // The child of a test must not unwind into the harness.
    let verdict = |good: bool| unsafe { libc::_exit(if good { 0 } else { 1 }) };
    let good = || {
        (0..memory.pages).all(|page| {
            let addr = memory.base + page * PAGE_SIZE;
            content(7, page) == unsafe { *(addr as *const [u64; PAGE_SIZE / 8]) }
        })
    };
    let pid = fork(engine);
    if pid == 0 {
        let grandchild = fork(engine);
        if grandchild == 0 {
            verdict(good());
        }
        verdict(good() && wait(grandchild) == 0);
    }
    memory.check(7);
    assert_eq!(wait(pid), 0, "a child read something else");
    memory.check(7);
}

/// A forked child that lives until it is told to end.
struct Child {
    pid: i32,
    ends: i32,
}

impl Child {
    fn of(engine: &'static Engine) -> Child {
        let mut pipe = [0; 2];
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let [begins, ends] = pipe;
        let pid = fork(engine);
        if pid == 0 {
            unsafe {
                libc::close(ends);
                let read = libc::read(begins, [0u8].as_mut_ptr().cast(), 1);
                libc::_exit(read as i32);
            }
        }
        unsafe { libc::close(begins) };
        Child { pid, ends }
    }

    fn end(self) {
        unsafe { libc::close(self.ends) };
        assert_eq!(wait(self.pid), 0);
    }
}

/// 16 MiB that a child shares, and an engine that is paused.
fn shared_with_a_child() -> (&'static Engine, Memory, Child) {
    let engine = engine(20);
    let memory = Memory::new(engine, 16 * MIB).in_small_pages();
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    have(engine, Command::Pause);
    memory.fill(31);
    let child = Child::of(engine);
    (engine, memory, child)
}

#[test]
fn memory_that_is_written_again_after_a_fork_is_evicted_again() {
    let (engine, memory, child) = shared_with_a_child();
    // The kernel takes the pages for shared until they are written, and moves none of them.
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), 0, "the kernel moved pages that a child had");
    have(engine, Command::Resume);
    memory.fill(32);
    wait_until_evicted(engine, 16 * MIB);
    memory.check(32);
    child.end();
    engine.stop(&"the test is over");
}

/// Whether touches of absent pages of the memory would be reported to the pager.
fn is_registered(memory: &Memory) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel lists the mappings");
    let mut here = false;
    smaps.lines().any(|line| {
        if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
            let bound = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (bound(start), bound(end)) {
                here = start < memory.base + memory.pages * PAGE_SIZE && end > memory.base;
            }
        }
        here && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "um")
    })
}

#[test]
fn memory_that_a_child_shares_is_known_as_such_also_when_it_is_let_go() {
    let engine = engine(2_000);
    let memory = Memory::new(engine, 16 * MIB).in_small_pages();
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    memory.fill(33);
    let child = Child::of(engine);
    wait_until("the kernel has refused to move it", || kept(engine, Why::SharedByFork) >= memory.pages);
    // What reports touches is left as soon as nothing of it is away; the next try comes after some seconds.
    wait_until("it is let go", || !is_registered(&memory));
    let shared = kept(engine, Why::SharedByFork);
    assert!(shared >= memory.pages, "{shared} of {} pages are taken for shared", memory.pages);
    child.end();
    memory.check(33);
    engine.stop(&"the test is over");
}

#[test]
fn memory_that_was_shared_with_a_child_is_evicted_when_the_child_has_ended() {
    let (engine, memory, child) = shared_with_a_child();
    // To fold what the child has too would gain nothing, and to write to it would cost a copy.
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), 0, "pages went that a child has");
    child.end();
    wait_until("everything is evicted, unwritten", || {
        have(engine, Command::Evict);
        evicted(engine) == 16 * MIB as u64
    });
    memory.check(31);
    engine.stop(&"the test is over");
}

#[test]
fn memory_that_was_shared_with_a_child_grows_cold_when_the_child_has_ended() {
    let (engine, memory, child) = shared_with_a_child();
    have(engine, Command::Resume);
    wait_until("they are tried", || engine.control().extents_registered.load(Relaxed) > 0);
    child.end();
    wait_until("everything is evicted, unwritten", || evicted(engine) == 16 * MIB as u64);
    memory.check(31);
    engine.stop(&"the test is over");
}

#[test]
fn a_system_call_reads_and_fills_evicted_memory() {
    let (_engine, memory) = evicted_memory(4 * MIB, 8);
    let mut pipe = [0; 2];
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    for page in (0..memory.pages).step_by(7) {
        let addr = (memory.base + page * PAGE_SIZE) as *mut libc::c_void;
        assert_eq!(unsafe { libc::write(pipe[1], addr, PAGE_SIZE) }, PAGE_SIZE as isize);
        let mut back = [0u64; PAGE_SIZE / 8];
        assert_eq!(unsafe { libc::read(pipe[0], back.as_mut_ptr().cast(), PAGE_SIZE) }, PAGE_SIZE as isize);
        assert!(back == content(8, page));
        // And the other way round, into the middle of a page that is away.
        let next = memory.base + (page + 1) * PAGE_SIZE + 1000;
        assert_eq!(unsafe { libc::write(pipe[1], back.as_ptr().cast(), 500) }, 500);
        assert_eq!(unsafe { libc::read(pipe[0], next as *mut libc::c_void, 500) }, 500);
        let found = unsafe { *((memory.base + (page + 1) * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        let expected = content(8, page + 1);
        assert!(found[..125] == expected[..125] && found[188..] == expected[188..]);
    }
}

#[test]
fn a_protection_change_keeps_what_is_evicted() {
    let (engine, memory) = evicted_memory(8 * MIB, 9);
    let plain = libc::PROT_READ | libc::PROT_WRITE;
    for (prot, is_plain) in [(libc::PROT_NONE, false), (libc::PROT_READ, false), (plain, true)] {
        engine
            .protect(memory.base, 8 * MIB, is_plain, || unsafe { mem::mprotect(memory.base, 8 * MIB, prot) })
            .unwrap();
        assert_eq!(engine.is_managed(memory.base, 8 * MIB), is_plain);
        if prot == libc::PROT_READ {
            (0..memory.pages).step_by(3).for_each(|page| memory.check_page(9, page));
        }
    }
    memory.check(9);
    memory.fill(10);
    memory.check(10);
}

#[test]
fn an_exempted_range_comes_back_and_stays() {
    let (engine, memory) = evicted_memory(8 * MIB, 11);
    engine.exempt(memory.base, 4 * MIB, || Ok(())).unwrap();
    assert!(!engine.is_managed(memory.base, PAGE_SIZE));
    wait_until("it has come back", || evicted(engine) <= 4 * MIB as u64);
    std::thread::sleep(Duration::from_millis(300));
    assert!(evicted(engine) <= 4 * MIB as u64);
    memory.check(11);
}

#[test]
fn pages_that_keep_being_touched_stay() {
    let engine = engine(400);
    let memory = Memory::new(engine, 16 * MIB);
    memory.fill(12);
    let hot = memory.pages / 4;
    let mut since: Option<Instant> = None;
    // For more than twice the cold age without a break: pages that went and came back at the next touch are not it.
    wait_until("what is touched stays and the rest goes", || {
        (0..hot).for_each(|page| memory.check_page(12, page));
        std::thread::sleep(Duration::from_millis(2));
        if !(11 * MIB as u64..=12 * MIB as u64).contains(&evicted(engine)) {
            since = None;
            return false;
        }
        since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1)
    });
    memory.check(12);
}

#[test]
fn what_was_in_use_and_is_no_more_goes_though_the_program_does_as_much() {
    let engine = engine(100);
    let memory = Memory::new(engine, 16 * MIB);
    memory.fill(13);
    let hot = memory.pages / 4;
    let began = Instant::now();
    // For so long that a few of the pages in use are tried, and come back.
    wait_until("what is not touched goes", || {
        (0..hot).for_each(|page| memory.check_page(13, page));
        evicted(engine) >= 11 * MIB as u64 && began.elapsed() > Duration::from_secs(2)
    });
    wait_until("what was touched goes", || {
        let working = Instant::now();
        while working.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        evicted(engine) > 15 * MIB as u64
    });
    memory.check(13);
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE_SIZE
}

#[test]
fn what_comes_back_while_set_aside_is_not_kept_twice() {
    let engine = engine(2_000);
    let memory = Memory::new(engine, 64 * MIB).in_small_pages();
    memory.fill(17);
    wait_until("everything is set aside", || engine.control().aside_bytes.load(Relaxed) == 64 * MIB as u64);
    have(engine, Command::Pause);
    let before = resident();
    // Every other page: none of them is brought along with another, and what stays away lies between what comes back.
    (0..memory.pages).step_by(2).for_each(|page| memory.check_page(17, page));
    assert!(resident() < before + 16 * MIB, "{} MiB more", (resident() - before) / MIB);
    wait_until("the copies are dropped", || resident() < before + 8 * MIB);
    assert!(engine.control().pages_second_chance.load(Relaxed) >= memory.pages as u64 / 2);
    memory.check(17);
}

#[test]
fn what_comes_back_all_at_once_does_not_lie_in_the_store_as_well() {
    let (engine, memory) = evicted_memory(128 * MIB, 18);
    have(engine, Command::Pause);
    let (before, store) = (resident(), engine.control().overhead_bytes.load(Relaxed) as usize);
    // The most that is resident counts from now on (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    have(engine, Command::Restore);
    assert_eq!(evicted(engine), 0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most = most.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024;
    // All that came back, and half of the store at most.
    assert!(most < before + 128 * MIB - store / 2, "{} MiB more, {store} of store", (most - before) / MIB);
    memory.check(18);
}

#[test]
fn random_bytes_are_not_kept_compressed() {
    let engine = engine(20);
    let memory = Memory::new(engine, 4 * MIB);
    // A huge page is tried as a whole or not at all.
    unsafe { mem::madvise(memory.base, 4 * MIB, libc::MADV_NOHUGEPAGE) }.unwrap();
    let mut state = 88_172_645_463_325_252u64;
    let words = unsafe { std::slice::from_raw_parts_mut(memory.base as *mut u64, 4 * MIB / 8) };
    for word in words.iter_mut() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state;
    }
    wait_until("all were tried", || engine.control().pages_incompressible.load(Relaxed) >= 1024);
    assert_eq!(evicted(engine), 0);
    // They came back, but nobody was to touch them soon.
    assert_eq!(engine.control().pages_prefetched.load(Relaxed), 0);
    // Under a limit that they do not fit below, and other memory comes and goes, they are not tried again, but those that were on
    // their way.
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, MIB as u64, ""), 0);
    let other = Memory::new(engine, 4 * MIB);
    for round in 0..5 {
        other.fill(round);
        other.check(round);
    }
    let tried = engine.control().pages_incompressible.load(Relaxed);
    assert!(tried < 1024 * 5 / 4, "1024 pages were tried {tried} times");
}

/// A mapping of so many extents with one page in each.
fn sparse(engine: &'static memfold_pager::Engine, extents: usize, seed: u64) -> Vec<Memory> {
    let len = extents * memfold_sys::EXTENT_SIZE;
    let base = mem::map_anonymous(0, len, libc::MAP_NORESERVE).unwrap();
    unsafe { mem::madvise(base, len, libc::MADV_NOHUGEPAGE) }.unwrap();
    engine.mapped(base, len);
    let pages: Vec<_> = (0..extents)
        .map(|n| Memory { base: base + n * memfold_sys::EXTENT_SIZE + n % 512 * PAGE_SIZE, pages: 1 })
        .collect();
    pages.iter().enumerate().for_each(|(n, page)| page.fill(seed + n as u64));
    pages
}

#[test]
fn single_pages_far_apart_are_evicted_where_there_are_many() {
    let engine = engine(20);
    let few = sparse(engine, 100, 5_000);
    let many = sparse(engine, 3_000, 10_000);
    wait_until("nearly all are evicted", || evicted(engine) >= (2_000 * PAGE_SIZE) as u64);
    let control = engine.control();
    let tables = control.overhead_bytes.load(Relaxed);
    assert!(tables < (3_100 * PAGE_SIZE) as u64, "{tables} bytes to hold less than that");
    few.iter().enumerate().for_each(|(n, page)| page.check(5_000 + n as u64));
    many.iter().enumerate().for_each(|(n, page)| page.check(10_000 + n as u64));
    // Beside them, what was never touched is new, and the kernel's affair again once all is back.
    assert!(page_at(many[7].base + PAGE_SIZE) == [0; PAGE_SIZE / 8]);
    engine.stop(&"the test is over");
}

#[test]
fn single_pages_far_apart_stay_where_there_are_few() {
    let engine = engine(20);
    let few = sparse(engine, 100, 5_000);
    let control = engine.control();
    let memory = Memory::new(engine, 4 * MIB).in_small_pages();
    memory.fill(33);
    wait_until("the rest is evicted", || evicted(engine) >= 4 * MIB as u64);
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), 4 * MIB as u64);
    assert!(control.extents_registered.load(Relaxed) <= 3);
    few.iter().enumerate().for_each(|(n, page)| page.check(5_000 + n as u64));
}

#[test]
fn zeros_cost_next_to_nothing() {
    let engine = engine(20);
    let memory = Memory::new(engine, 32 * MIB).in_small_pages();
    unsafe { std::ptr::write_bytes(memory.base as *mut u8, 0, 32 * MIB) };
    wait_until_evicted(engine, 32 * MIB);
    // Some may have gone before they were written, and again after that.
    let control = engine.control();
    assert_eq!(control.pages_same_value.load(Relaxed), control.pages_evicted.load(Relaxed));
    assert_eq!(engine.control().stored_bytes.load(Relaxed), 0);
    let words = unsafe { std::slice::from_raw_parts(memory.base as *const u64, 32 * MIB / 8) };
    assert!(words.iter().all(|&w| w == 0));
}

#[test]
fn a_drop_that_meets_a_hole_has_happened_all_the_same() {
    let (engine, memory) = evicted_memory(8 * MIB, 13);
    let hole = memory.base + 4 * MIB;
    engine.unmap(hole, MIB, || unsafe { mem::munmap(hole, MIB) }).unwrap();
    let result = engine.drop_contents(memory.base, 8 * MIB, || unsafe {
        mem::madvise(memory.base, 8 * MIB, libc::MADV_DONTNEED)
    });
    assert_eq!(result, Err(memfold_sys::Errno::ENOMEM));
    for page in (0..memory.pages).filter(|page| !(1024..1280).contains(page)) {
        let found = unsafe { *((memory.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        assert!(found == [0; PAGE_SIZE / 8], "page {page} came back from the dead");
    }
}

#[test]
fn folding_waits_for_cpu_time_unless_a_limit_presses() {
    let engine = engine(20);
    let memory = Memory::new(engine, 32 * MIB).in_small_pages();
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    let set = |setting: Setting, value: u64| {
        assert_eq!(request(engine, Command::Set, setting as u64, value, ""), 0);
    };
    // A tenth of a millisecond in ten seconds: looking alone takes more.
    set(Setting::MaxCpu, 10);
    memory.fill(15);
    std::thread::sleep(Duration::from_secs(1));
    assert!(evicted(engine) <= 8 * MIB as u64, "{}", evicted(engine));
    set(Setting::ResidentLimit, 16 * MIB as u64);
    wait_until("it is down to the limit", || evicted(engine) >= 16 * MIB as u64);
    set(Setting::ResidentLimit, u64::MAX);
    set(Setting::MaxCpu, 1_000_000);
    wait_until_evicted(engine, 32 * MIB);
    memory.check(15);
}

#[test]
fn pages_that_came_back_soon_are_told_from_those_that_were_away_for_long() {
    let (engine, memory) = evicted_memory(8 * MIB, 16);
    memory.check(16);
    let soon = engine.soon_back();
    assert!(soon >= memory.pages as u64 / 2, "{soon}");
    // Thirty cold ages, and the pauses between two looks; longer where the background thread gets little time.
    let mut long = Duration::from_secs(2);
    wait_until("what was away for long is told from it", || {
        wait_until("everything is evicted again", || evicted(engine) >= 7 * MIB as u64);
        std::thread::sleep(long);
        long *= 2;
        let before = engine.soon_back();
        memory.check(16);
        engine.soon_back() - before <= memory.pages as u64 / 4
    });
}

/// What is in use is tried again and again, and what lies beside it is no younger for that.
#[test]
fn pages_that_were_away_for_long_are_told_from_those_in_use_beside_them() {
    let (engine, memory) = evicted_memory(8 * MIB, 16);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                (0..memory.pages).step_by(EXTENT_PAGES).for_each(|page| memory.check_page(16, page));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let others = |page: &usize| !page.is_multiple_of(EXTENT_PAGES);
        let mut long = Duration::from_secs(2);
        wait_until("what was away for long is told from it", || {
            wait_until("everything else is evicted", || evicted(engine) >= 7 * MIB as u64);
            std::thread::sleep(long);
            long *= 2;
            let before = engine.soon_back();
            (0..memory.pages).filter(others).for_each(|page| memory.check_page(16, page));
            engine.soon_back() - before <= memory.pages as u64 / 4
        });
        over.store(true, Relaxed);
    });
}

/// Every other round begins with what the stall budget holds back, and the rounds between them come to all the rest.
#[test]
fn what_the_stall_budget_holds_back_keeps_nothing_before_it_from_its_turn() {
    let engine = engine(86_400_000);
    let memory = Memory::new(engine, 32 * MIB).in_small_pages();
    let half = memory.pages / 2;
    let fill = |pages: std::ops::Range<usize>| {
        pages.for_each(|page| unsafe {
            *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(17, page);
        });
    };
    fill(half..memory.pages);
    for (setting, value) in [(Setting::MaxStall, 10), (Setting::ColdAge, 20_000_000)] {
        assert_eq!(request(engine, Command::Set, setting as u64, value, ""), 0);
    }
    wait_until("it is held back", || kept(engine, Why::StallBudget) >= half / 2);
    fill(0..half);
    // Whatever the budget, that goes; and what is set aside is compressed.
    engine.dont_need_soon(memory.base, half * PAGE_SIZE).unwrap();
    wait_until("what is not needed is stored", || evicted(engine) >= (half * PAGE_SIZE) as u64);
    memory.check(17);
}

#[test]
fn a_limit_holds_though_nothing_is_old_enough_to_be_cold() {
    let engine = engine(86_400_000);
    let memory = Memory::new(engine, 16 * MIB);
    memory.fill(14);
    let limit = 4 * MIB as u64;
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, limit, ""), 0);
    wait_until("it is down to the limit", || evicted(engine) >= 12 * MIB as u64);
    memory.check(14);
}
