//! A walk through memory that is away: it is served in few touches, and leaves nothing marked as used.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::why::Why;
use memfold_pager::Engine;
use memfold_sys::{mem, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// The cold age, ms; what lay still for a quarter of it may be walked through.
const COLD_AGE: u64 = 2_000;
const STILL: Duration = Duration::from_millis(600);

/// All pages, extent by extent, each extent's in an order without neighbours.
fn walk(memory: &Memory) -> impl Iterator<Item = usize> {
    let extents = memory.pages / EXTENT_PAGES;
    (0..extents)
        .flat_map(|extent| (0..EXTENT_PAGES).map(move |n| extent * EXTENT_PAGES + n * 211 % EXTENT_PAGES))
}

fn touches(engine: &'static Engine) -> u64 {
    engine.control().fault_ns.count.load(Relaxed)
}

/// Pages of the memory that are in view; to ask (`mincore(2)`) touches none.
fn resident(memory: &Memory) -> usize {
    let mut here = vec![0_u8; memory.pages];
    assert_eq!(
        unsafe { libc::mincore(memory.base as *mut _, memory.pages * PAGE_SIZE, here.as_mut_ptr()) },
        0
    );
    here.iter().filter(|page| **page & 1 != 0).count()
}

/// An engine that is paused, and memory of it that has been aside, all of it, and lain still.
fn aside(len: usize, seed: u64) -> (&'static Engine, Memory) {
    let engine = engine(COLD_AGE);
    let memory = Memory::new(engine, len).in_small_pages();
    memory.fill(seed);
    wait_until("everything is set aside", || engine.control().aside_bytes.load(Relaxed) == len as u64);
    have(engine, Command::Pause);
    std::thread::sleep(STILL);
    (engine, memory)
}

#[test]
fn a_walk_is_served_in_few_touches_and_leaves_little_in_use() {
    let (engine, memory) = aside(32 * MIB, 40);
    let before = touches(engine);
    walk(&memory).for_each(|page| memory.check_page(40, page));
    let waits = touches(engine) - before;
    assert!(waits <= memory.pages as u64 / 4, "{waits} waits for {} pages", memory.pages);
    // While it is paused, that is why nothing goes.
    have(engine, Command::Resume);
    let used = kept(engine, Why::Hot) + kept(engine, Why::CameBackSoon);
    assert!(used <= memory.pages / 4, "{used} of {} pages are taken for used", memory.pages);
    wait_until("it is set aside again", || {
        engine.control().aside_bytes.load(Relaxed) + evicted(engine) >= 24 * MIB as u64
    });
    memory.check(40);
}

/// The same of 64 MiB after somebody has walked through so many extents of it, which brought back all of it, and how many touches that took. Who is kept from
/// the CPUs meanwhile is not seen to walk, and it is tried again.
fn recalled(seed: u64, extents: usize) -> (&'static Engine, Memory, u64) {
    /// How long it may be until all is back, in 5 ms.
    const PATIENCE: usize = 1_000;
    for _ in 0..20 {
        let (engine, memory) = aside(64 * MIB, seed);
        let before = touches(engine);
        // In no order of extents, as a collector goes.
        (0..extents * EXTENT_PAGES).for_each(|n| {
            memory.check_page(seed, n % extents * EXTENT_PAGES + n / extents * 211 % EXTENT_PAGES);
        });
        let touches = touches(engine) - before;
        let is_back = |_| {
            std::thread::sleep(Duration::from_millis(5));
            engine.control().aside_bytes.load(Relaxed) == 0
        };
        if (0..PATIENCE).any(is_back) {
            return (engine, memory, touches);
        }
        engine.stop(&"it is tried again");
    }
    panic!("never: all of it is back");
}

#[test]
fn who_walks_through_some_of_it_is_not_kept_waiting_by_the_rest() {
    let some = 12 * EXTENT_PAGES;
    let (engine, memory, waits) = recalled(44, 12);
    assert!(waits < some as u64 / 4, "{waits} waits");
    have(engine, Command::Resume);
    let used = kept(engine, Why::Hot) + kept(engine, Why::CameBackSoon);
    assert!(used <= some / 4, "{used} pages are taken for used");
    wait_until("the rest is stored", || evicted(engine) >= 32 * MIB as u64);
    memory.check(44);
}

#[test]
fn what_was_recalled_is_set_aside_again_before_anything_that_is_new() {
    let (engine, memory, _) = recalled(46, 5);
    // The probe under way would end long after the next one begins that is due for what was recalled.
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, 6_000_000_000, ""), 0);
    let new = Memory::new(engine, 16 * MIB).in_small_pages();
    new.fill(48);
    have(engine, Command::Resume);
    wait_until("it is set aside again", || resident(&memory) < memory.pages / 2);
    assert_eq!(resident(&new), new.pages, "of what is new, by its pages");
    memory.check(46);
    new.check(48);
}

#[test]
fn what_is_dropped_while_all_is_brought_back_is_gone() {
    let (engine, memory) = aside(64 * MIB, 47);
    let half = memory.pages / 2;
    std::thread::scope(|scope| {
        scope
            .spawn(|| walk(&memory).filter(|&page| page < half).for_each(|page| memory.check_page(47, page)));
        wait_until("somebody walks", || engine.control().pages_second_chance.load(Relaxed) != 0);
        for page in (half..memory.pages).step_by(16) {
            let (base, len) = (memory.base + page * PAGE_SIZE, 16 * PAGE_SIZE);
            engine
                .drop_contents(base, len, || unsafe { mem::madvise(base, len, libc::MADV_DONTNEED) })
                .unwrap();
        }
    });
    wait_until("the rest is back", || engine.control().aside_bytes.load(Relaxed) == 0);
    (0..half).for_each(|page| memory.check_page(47, page));
    for page in half..memory.pages {
        assert!(page_at(memory.base + page * PAGE_SIZE) == [0; PAGE_SIZE / 8], "page {page} is there again");
    }
}

/// Forks children while somebody walks, each of which looks whether everything is there.
fn fork_in_a_walk(engine: &'static Engine, memory: &Memory, seed: u64, begun: impl FnMut() -> bool) {
    std::thread::scope(|scope| {
        scope.spawn(|| walk(memory).for_each(|page| memory.check_page(seed, page)));
        wait_until("somebody walks", begun);
        let children: Vec<i32> = (0..8)
            .map(|_| {
                let pid = fork(engine);
                if pid == 0 {
                    let good = (0..memory.pages)
                        .all(|page| content(seed, page) == page_at(memory.base + page * PAGE_SIZE));
                    // The child of a test must not unwind into the harness.
                    unsafe { libc::_exit(i32::from(!good)) };
                }
                pid
            })
            .collect();
        children.into_iter().for_each(|pid| assert_eq!(wait(pid), 0, "a child read something else"));
    });
    memory.check(seed);
}

#[test]
fn children_that_are_forked_while_all_is_brought_back_find_every_byte() {
    let (engine, memory) = aside(64 * MIB, 45);
    fork_in_a_walk(engine, &memory, 45, || engine.control().pages_second_chance.load(Relaxed) != 0);
}

/// Memory of an engine that is paused, all of it compressed, and lain still.
fn compressed(len: usize, seed: u64) -> (&'static Engine, Memory) {
    let (engine, memory) = evicted_memory(len, seed);
    have(engine, Command::Pause);
    // The cold age of this engine is shorter than any pause between two touches, so each would begin anew.
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, COLD_AGE * 1_000_000, ""), 0);
    std::thread::sleep(STILL);
    (engine, memory)
}

fn brought_ahead(engine: &'static Engine) -> u64 {
    engine.control().pages_prefetched.load(Relaxed)
}

#[test]
fn helpers_bring_what_is_compressed_ahead_of_a_walk() {
    let (engine, memory) = compressed(64 * MIB, 49);
    wait_until("helpers have brought some of it", || {
        walk(&memory).for_each(|page| memory.check_page(49, page));
        let helped = brought_ahead(engine) >= 1_000;
        if !helped {
            have(engine, Command::Evict);
            std::thread::sleep(STILL);
        }
        helped
    });
    memory.check(49);
}

#[test]
fn children_that_are_forked_while_helpers_are_at_work_find_every_byte() {
    let (engine, memory) = compressed(64 * MIB, 50);
    fork_in_a_walk(engine, &memory, 50, || brought_ahead(engine) != 0 || evicted(engine) < 32 * MIB as u64);
}

#[test]
fn what_is_dropped_while_helpers_bring_it_is_gone() {
    let (engine, memory) = compressed(64 * MIB, 51);
    // A page in so many is dropped right after it was touched, in the middle of what helpers are bringing.
    let dropped = |page: usize| page % 8 == 3;
    std::thread::scope(|scope| {
        let kept = walk(&memory).filter(|&page| !dropped(page));
        scope.spawn(|| kept.for_each(|page| memory.check_page(51, page)));
        for page in (0..memory.pages).filter(|&page| dropped(page)) {
            let base = memory.base + page * PAGE_SIZE;
            let drop = || unsafe { mem::madvise(base, PAGE_SIZE, libc::MADV_DONTNEED) };
            engine.drop_contents(base, PAGE_SIZE, drop).unwrap();
            assert!(page_at(base) == [0; PAGE_SIZE / 8], "page {page} is there again");
        }
    });
    for page in 0..memory.pages {
        if dropped(page) {
            let here = page_at(memory.base + page * PAGE_SIZE);
            assert!(here == [0; PAGE_SIZE / 8], "page {page} is there again");
        } else {
            memory.check_page(51, page);
        }
    }
}

#[test]
fn what_is_compressed_comes_back_in_a_walk_too() {
    let (engine, memory) = compressed(16 * MIB, 41);
    let before = touches(engine);
    walk(&memory).for_each(|page| memory.check_page(41, page));
    let waits = touches(engine) - before;
    assert!(waits <= memory.pages as u64 / 2, "{waits} waits for {} pages", memory.pages);
    // Nor does it say that folding was not worth it.
    let soon = engine.soon_back();
    assert!(soon <= memory.pages as u64 / 4, "{soon} of {} pages count as back too soon", memory.pages);
    have(engine, Command::Resume);
    let used = kept(engine, Why::Hot) + kept(engine, Why::CameBackSoon);
    assert!(used <= memory.pages / 4, "{used} of {} pages are taken for used", memory.pages);
}

#[test]
fn threads_that_walk_against_each_other_find_every_byte() {
    let (engine, memory) = aside(32 * MIB, 42);
    let before = touches(engine);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, order) = (&memory, walk(&memory).collect::<Vec<_>>());
            scope.spawn(move || {
                for n in 0..order.len() {
                    let at = (n + thread * order.len() / 4) % order.len();
                    let page = if thread % 2 == 0 { order[at] } else { order[order.len() - 1 - at] };
                    memory.check_page(42, page);
                }
            });
        }
    });
    assert!(touches(engine) - before < memory.pages as u64);
    memory.check(42);
}

#[test]
fn a_part_that_is_in_use_does_not_bring_the_rest() {
    let (engine, memory) = (engine(COLD_AGE), 16 * MIB);
    let memory = Memory::new(engine, memory).in_small_pages();
    memory.fill(43);
    let part = |page: usize| page * 211 % EXTENT_PAGES < EXTENT_PAGES / 4;
    // Touched all the time, it is found in use as soon as it is set aside.
    wait_until("the rest is evicted", || {
        (0..memory.pages).filter(|&page| part(page)).for_each(|page| memory.check_page(43, page));
        evicted(engine) == 12 * MIB as u64
    });
    memory.check(43);
}
