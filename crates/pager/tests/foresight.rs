//! What came back together before is brought together, and nothing else; whatever has become of it since, every byte is right.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::Engine;
use memfold_sys::{mem, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Longer than the pauses within a burst.
const BETWEEN: Duration = Duration::from_millis(150);
/// A program works on what it has read first.
const WORK: Duration = Duration::from_millis(20);
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
