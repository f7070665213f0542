//! What came back together before is brought together, and nothing else; whatever has become of it since, every byte is right.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::Engine;
use memfold_policy::budget::NO_LIMIT;
use memfold_sys::{mem, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Longer than the pauses within a burst.
const BETWEEN: Duration = Duration::from_millis(150);
/// A program works on what it has read first.
const WORK: Duration = Duration::from_millis(20);
/// How long a group may take to come, and how often it is tried.
const ATTEMPT: Duration = Duration::from_secs(10);
const ATTEMPTS: usize = 12;
/// From one recurrence to the next.
const PERIOD: Duration = Duration::from_millis(400);

/// An engine that folds on request only, and memory of it.
fn folded(len: usize, seed: u64) -> (&'static Engine, Memory) {
    let (engine, memory) = evicted_memory(len, seed);
    have(engine, Command::Pause);
    // Touches tell of use, and not of a walk.
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, 600_000_000_000, ""), 0);
    (engine, memory)
}

/// Pages in all extents, few of each, in no order of addresses.
fn scattered(memory: &Memory, seed: usize) -> Vec<usize> {
    let extents = memory.pages / EXTENT_PAGES;
    (0..10 * extents).map(|n| n % extents * EXTENT_PAGES + (seed + n / extents * 53) % EXTENT_PAGES).collect()
}

/// Has everything evicted, and touches these pages; how many waits that was.
fn burst(engine: &'static Engine, pages: &[usize], check: impl Fn(usize)) -> u64 {
    have(engine, Command::Evict);
    std::thread::sleep(BETWEEN);
    let waits = || engine.control().fault_ns.count.load(Relaxed);
    let before = waits();
    check(pages[0]);
    std::thread::sleep(WORK);
    pages.iter().for_each(|&page| check(page));
    waits() - before
}

#[test]
fn what_came_back_together_before_comes_back_in_few_waits() {
    let (engine, memory) = folded(32 * MIB, 60);
    let pages = scattered(&memory, 0);
    wait_until("most of it is there before its touch", || {
        let waits = burst(engine, &pages, |page| memory.check_page(60, page));
        waits <= pages.len() as u64 / 3 && engine.control().predicted_hit.load(Relaxed) > 0
    });
    assert!(engine.control().pages_predicted.load(Relaxed) >= pages.len() as u64 / 2);
    memory.check(60);
}

#[test]
fn nothing_is_foreseen_where_that_is_not_wanted() {
    let (engine, memory) = folded(32 * MIB, 67);
    let pages = scattered(&memory, 0);
    let (by_touch, by_time) = (&engine.control().pages_predicted, &engine.control().periods_predicted);
    let predicted = || by_touch.load(Relaxed) + by_time.load(Relaxed);
    let wanted = |value| request(engine, Command::Set, Setting::Foresight as u64, value, "");
    wait_until("it is foreseen", || {
        burst(engine, &pages, |page| memory.check_page(67, page));
        predicted() > 0
    });
    assert_eq!(wanted(0), 0);
    let before = predicted();
    for _ in 0..3 {
        burst(engine, &pages, |page| memory.check_page(67, page));
    }
    assert_eq!(predicted(), before);
    // What was seen meanwhile is known.
    assert_eq!(wanted(1), 0);
    wait_until("it is foreseen again", || {
        burst(engine, &pages, |page| memory.check_page(67, page));
        predicted() > before
    });
    memory.check(67);
}

#[test]
fn what_never_came_back_together_is_not_brought() {
    let (engine, memory) = folded(32 * MIB, 61);
    for round in 0..6 {
        burst(engine, &scattered(&memory, 1 + round), |page| memory.check_page(61, page));
    }
    assert_eq!(engine.control().pages_predicted.load(Relaxed), 0);
    memory.check(61);
}

#[test]
fn what_was_dropped_since_is_not_brought_back() {
    let (engine, memory) = folded(32 * MIB, 62);
    let pages = scattered(&memory, 0);
    wait_until("it is foreseen", || {
        burst(engine, &pages, |page| memory.check_page(62, page));
        engine.control().pages_predicted.load(Relaxed) != 0
    });
    have(engine, Command::Evict);
    let (kept, dropped) = pages.split_at(pages.len() / 2);
    for &page in dropped {
        let base = memory.base + page * PAGE_SIZE;
        engine
            .drop_contents(base, PAGE_SIZE, || unsafe { mem::madvise(base, PAGE_SIZE, libc::MADV_DONTNEED) })
            .unwrap();
    }
    for _ in 0..3 {
        burst(engine, kept, |page| memory.check_page(62, page));
        for &page in dropped {
            assert!(
                page_at(memory.base + page * PAGE_SIZE) == [0; PAGE_SIZE / 8],
                "page {page} is there again"
            );
        }
    }
}

/// Has a set touched at each beat, and everything evicted after it, until that was enough.
fn beat(engine: &'static Engine, pages: &[usize], check: impl Fn(usize), enough: impl Fn() -> bool) {
    let mut next = Instant::now();
    wait_until("it is known to recur", || {
        have(engine, Command::Evict);
        next = (next + PERIOD).max(Instant::now());
        std::thread::sleep(next - Instant::now());
        pages.iter().for_each(|&page| check(page));
        enough()
    });
}

#[test]
fn what_recurs_is_brought_before_its_time_and_counts_as_wasted_once_it_recurs_no_more() {
    let (engine, memory) = folded(16 * MIB, 63);
    let pages = scattered(&memory, 0);
    let hit = || engine.control().periods_hit.load(Relaxed);
    beat(engine, &pages, |page| memory.check_page(63, page), || hit() > 0);
    assert!(hit() <= 2 * engine.control().periods_predicted.load(Relaxed));
    have(engine, Command::Evict);
    wait_until("it is wasted", || engine.control().periods_wasted.load(Relaxed) > 0);
    memory.check(63);
}

#[test]
fn what_was_changed_or_dropped_before_its_time_stays_so() {
    let (engine, memory) = folded(16 * MIB, 64);
    let pages = scattered(&memory, 0);
    let predicted = || engine.control().periods_predicted.load(Relaxed);
    beat(engine, &pages, |page| memory.check_page(64, page), || predicted() > 0);
    have(engine, Command::Evict);
    let (changed, dropped) = pages.split_at(pages.len() / 2);
    let addr = |page: usize| memory.base + page * PAGE_SIZE;
    let before = predicted();
    for &page in dropped {
        let drop = || unsafe { mem::madvise(addr(page), PAGE_SIZE, libc::MADV_DONTNEED) };
        engine.drop_contents(addr(page), PAGE_SIZE, drop).unwrap();
    }
    for &page in changed {
        unsafe { *(addr(page) as *mut [u64; PAGE_SIZE / 8]) = content(65, page) };
    }
    have(engine, Command::Evict);
    let right = || {
        changed.iter().for_each(|&page| memory.check_page(65, page));
        dropped.iter().for_each(|&page| {
            assert!(page_at(addr(page)) == [0; PAGE_SIZE / 8], "page {page} is there again")
        });
    };
    beat(engine, &[], |_| (), || predicted() > before || engine.control().periods_wasted.load(Relaxed) > 0);
    right();
    have(engine, Command::Evict);
    right();
}

/// An engine with memory of so many extents, of which it has learnt that `pages` come back together, and asks for them at the touch of the first. Everything is
/// away, and nobody is limited in what may be asked for.
fn foreseen(
    extents: usize,
    seed: u64,
    pages: impl Fn(&Memory) -> Vec<usize>,
) -> (&'static Engine, Memory, Vec<usize>) {
    let (engine, memory) = folded(extents * EXTENT_SIZE, seed);
    assert_eq!(request(engine, Command::Set, Setting::MaxStall as u64, NO_LIMIT, ""), 0);
    let pages = pages(&memory);
    let mut pause = BETWEEN;
    wait_until("it is foreseen", || {
        // At no times that recur: else it would be brought at the next of them, and not for its touch.
        std::thread::sleep(pause);
        pause *= 3;
        burst(engine, &pages, |page| memory.check_page(seed, page));
        engine.control().pages_predicted.load(Relaxed) != 0
    });
    have(engine, Command::Evict);
    (engine, memory, pages)
}

/// The first of the pages, then those of which something else is to become, then the others: what is asked for is brought in this order.
fn doomed_first(memory: &Memory, is_doomed: impl Fn(usize) -> bool) -> Vec<usize> {
    let (doomed, mut kept): (Vec<usize>, Vec<usize>) =
        scattered(memory, 0).into_iter().partition(|&page| is_doomed(page));
    let first = kept.remove(0);
    [first].into_iter().chain(doomed).chain(kept).collect()
}

/// Whether there is a page at the address, which is not touched by that.
fn is_there(addr: usize) -> bool {
    let mut present = 0;
    assert_eq!(unsafe { libc::mincore(addr as *mut _, PAGE_SIZE, &mut present) }, 0);
    present & 1 != 0
}

/// Touches the first of the group's pages, and waits until those that came to be asked for last are there. Whether they came: on a busy machine the touch may fall into a
/// moment for which the page was foreseen, and is none then.
fn begin_group(memory: &Memory, seed: u64, pages: &[usize]) -> bool {
    std::thread::sleep(BETWEEN);
    memory.check_page(seed, pages[0]);
    // Of eight one is left out.
    let last = &pages[pages.len() - 16..];
    let have_come = || last.iter().filter(|&&page| is_there(memory.base + page * PAGE_SIZE)).count() >= 12;
    let end = Instant::now() + ATTEMPT;
    while !have_come() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    have_come()
}

/// Has the test made again, with an engine of its own each time, until its group was brought.
fn until_brought(mut attempt: impl FnMut() -> bool) {
    assert!((0..ATTEMPTS).any(|_| attempt()), "no group was brought");
}

#[test]
fn what_was_dropped_since_stays_away_when_its_group_is_brought() {
    until_brought(dropped_since);
}

fn dropped_since() -> bool {
    let is_dropped = |page: usize| page / EXTENT_PAGES % 2 == 1 || page % 2 == 1;
    let (engine, memory, pages) = foreseen(16, 66, |memory| doomed_first(memory, is_dropped));
    let addr = |page: usize| memory.base + page * PAGE_SIZE;
    let dropped: Vec<usize> = pages.iter().copied().filter(|&page| is_dropped(page)).collect();
    assert!(!is_dropped(pages[0]) && dropped.len() > 32 && pages.len() - dropped.len() > 32);
    for (n, &page) in dropped.iter().enumerate() {
        let drop = || unsafe { mem::madvise(addr(page), PAGE_SIZE, libc::MADV_DONTNEED) };
        // Past libc too: then the kernel reports it.
        if n % 2 == 0 { engine.drop_contents(addr(page), PAGE_SIZE, drop) } else { drop() }.unwrap();
    }
    let begun = begin_group(&memory, 66, &pages);
    for &page in &dropped {
        assert!(!is_there(addr(page)), "page {page} is there again");
    }
    for &page in &pages {
        if is_dropped(page) {
            assert!(page_at(addr(page)) == [0; PAGE_SIZE / 8], "page {page} is what it was");
        } else {
            memory.check_page(66, page);
        }
    }
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
    engine.stop(&"the test is over");
    begun
}

#[test]
fn a_group_brings_nothing_to_where_its_pages_no_longer_are() {
    until_brought(moved_since);
}

fn moved_since() -> bool {
    // The memory is in four parts: what stays, what is unmapped, what is mapped over, and what is moved.
    const PART: usize = 4 * EXTENT_SIZE;
    let part = |page: usize| page * PAGE_SIZE / PART;
    let (engine, memory, pages) = foreseen(16, 67, |memory| doomed_first(memory, |page| part(page) != 0));
    let map = |addr: usize, protection: i32| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        unsafe { mem::mmap(addr, PART, protection, flags, -1, 0) }
    };
    let [unmapped, replaced, moved] = [1, 2, 3].map(|part| memory.base + part * PART);
    // What nobody may use lies there from then on, so that nothing of another thread's does.
    engine.unmap(unmapped, PART, || map(unmapped, libc::PROT_NONE)).unwrap();
    // Past libc: then the kernel reports it.
    map(replaced, libc::PROT_READ | libc::PROT_WRITE).unwrap();
    engine.mapped(replaced, PART);
    let is_new = |page: usize| page.is_multiple_of(3);
    for page in (0..PART / PAGE_SIZE).filter(|&page| is_new(page)) {
        unsafe { *((replaced + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(68, page) };
    }
    let target = mem::reserve_aligned(PART, EXTENT_SIZE).unwrap();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let op = || unsafe { mem::mremap(moved, PART, PART, flags, target) };
    assert_eq!(engine.remap(moved, PART, PART, Some(target), op), Ok(target));
    have(engine, Command::Evict);
    let before = evicted(engine);
    assert!(before >= (PART + PART / 4) as u64, "{before} bytes are away");
    let right = || {
        for page in 0..PART / PAGE_SIZE {
            assert!(!is_there(unmapped + page * PAGE_SIZE), "page {page} is there again");
            let expected = if is_new(page) { content(68, page) } else { [0; PAGE_SIZE / 8] };
            assert!(page_at(replaced + page * PAGE_SIZE) == expected, "new page {page} is another");
            let of = 3 * PART / PAGE_SIZE + page;
            assert!(page_at(target + page * PAGE_SIZE) == content(67, of), "moved page {page} changed");
        }
    };
    let begun = begin_group(&memory, 67, &pages);
    right();
    have(engine, Command::Evict);
    right();
    (0..PART / PAGE_SIZE).for_each(|page| memory.check_page(67, page));
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
    engine.stop(&"the test is over");
    begun
}

#[test]
fn a_group_larger_than_what_a_limit_leaves_room_for_is_not_brought() {
    let (engine, memory, pages) = foreseen(16, 69, |memory| scattered(memory, 0));
    let control = engine.control();
    let counts = || {
        [&control.pages_predicted, &control.periods_predicted, &control.pages_prefetched]
            .map(|count| count.load(Relaxed))
    };
    // What is touched comes when something else has gone. While folding is paused no limit is kept.
    let limit = anonymous() + (pages.len() / 2 * PAGE_SIZE) as u64;
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, limit, ""), 0);
    have(engine, Command::Resume);
    let mut others = (0..memory.pages).filter(|page| !pages.contains(page)).cycle();
    wait_until("the limit is kept", || {
        others.by_ref().take(64).for_each(|page| memory.check_page(69, page));
        control.limit_waits.load(Relaxed) > 0
    });
    // Helpers may have been asked for more before.
    let mut before = counts();
    wait_until("helpers have brought what they were asked for", || {
        burst(engine, &pages, |page| memory.check_page(69, page));
        let last = std::mem::replace(&mut before, counts());
        last == before
    });
    for _ in 0..3 {
        burst(engine, &pages, |page| memory.check_page(69, page));
    }
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, u64::MAX, ""), 0);
    assert_eq!(counts(), before, "pages were asked for, or brought, that nobody had touched");
    memory.check(69);
}
