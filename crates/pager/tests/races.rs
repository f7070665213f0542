//! Moments at which two threads meet: each test holds one of them still where the other must cope.
//!
//! What it is not: a search for such moments, which is what `model.rs` and the verifier do. Here each is arranged, so that
//! the rule that makes it harmless is proved every time; `scripts/sabotage` breaks the rules one by one.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_pager::lock::Mutex;
use memfold_pager::Phase;
use memfold_sys::{mem, EXTENT_SIZE, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::thread::{scope, sleep, spawn};
use std::time::Duration;

const ZEROS: [u64; PAGE_SIZE / 8] = [0; PAGE_SIZE / 8];
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn millis(n: u64) {
    sleep(Duration::from_millis(n));
}

fn drop_page(addr: usize) -> memfold_sys::Result<()> {
    unsafe { mem::madvise(addr, PAGE_SIZE, libc::MADV_DONTNEED) }
}

fn map_fixed(addr: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    unsafe { mem::mmap(addr, len, RW, flags, -1, 0) }.unwrap();
}

#[test]
fn a_touch_between_a_drop_and_the_end_of_its_announcement_reads_zeros() {
    let (engine, memory) = evicted_memory(4 * MIB, 21);
    for page in [3, 700] {
        let addr = memory.base + page * PAGE_SIZE;
        scope(|scope| {
            engine
                .drop_contents(addr, PAGE_SIZE, || {
                    drop_page(addr)?;
                    scope.spawn(move || {
                        assert!(page_at(addr) == ZEROS, "page {page} came back from the dead")
                    });
                    millis(30);
                    Ok(())
                })
                .unwrap();
        });
        memory.check_page(21, page + 1);
    }
}

#[test]
fn a_restore_that_has_begun_ends_before_its_page_is_dropped() {
    let (engine, memory) = evicted_memory(4 * MIB, 22);
    for page in (0..memory.pages).step_by(29) {
        let addr = memory.base + page * PAGE_SIZE;
        scope(|scope| {
            scope.spawn(|| std::hint::black_box(page_at(addr)));
            sleep(Duration::from_micros(300));
            engine.drop_contents(addr, PAGE_SIZE, || drop_page(addr)).unwrap();
        });
        assert!(page_at(addr) == ZEROS, "page {page} came back from the dead");
    }
}

/// Nobody announces the move: it is a system call of the program's own.
#[test]
fn what_is_moved_to_where_all_came_back_is_whole() {
    let engine = engine(20);
    const LEN: usize = 4 * EXTENT_SIZE;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    for round in 0..12 {
        let (moved, place) = (Memory::new(engine, LEN), Memory::new(engine, LEN));
        moved.fill(28);
        place.fill(29);
        wait_until("all is away", || evicted(engine) >= 2 * LEN as u64);
        // Its extents are let go of now, one after the other, and watched.
        place.check(29);
        sleep(Duration::from_millis(3) * round);
        let base = unsafe { mem::mremap(moved.base, LEN, LEN, flags, place.base) }.unwrap();
        Memory { base, ..moved }.check(28);
    }
}

#[test]
fn two_threads_that_move_mappings_crosswise_get_past_each_other() {
    let (engine, memory) = evicted_memory(16 * MIB, 23);
    let first = memory.base.next_multiple_of(EXTENT_SIZE);
    let (low, high) = (first, first + 4 * EXTENT_SIZE);
    let half = EXTENT_SIZE / 2;
    let carry = |from: usize, to: usize| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        for turn in 0..100 {
            let (from, to) = if turn % 2 == 0 { (from, to) } else { (to, from) };
            let len = 8 * PAGE_SIZE;
            engine
                .remap(from, len, len, Some(to), || unsafe { mem::mremap(from, len, len, flags, to) })
                .unwrap();
        }
    };
    scope(|scope| {
        scope.spawn(|| carry(low, high));
        scope.spawn(|| carry(high + half, low + half));
    });
    memory.check_page(23, memory.pages - 1);
}

#[test]
fn nobody_changes_a_mapping_between_the_two_ends_of_a_fork() {
    let (engine, memory) = evicted_memory(4 * MIB, 24);
    let changed = AtomicBool::new(false);
    let addr = memory.base;
    scope(|scope| {
        engine.before_fork();
        scope.spawn(|| {
            let op = || {
                changed.store(true, SeqCst);
                drop_page(addr)
            };
            engine.drop_contents(addr, PAGE_SIZE, op).unwrap();
        });
        millis(100);
        let too_soon = changed.load(SeqCst);
        engine.after_fork_in_parent();
        assert!(!too_soon, "a mapping was changed during a fork");
    });
    assert!(changed.load(SeqCst) && page_at(addr) == ZEROS);
}

#[test]
fn nothing_is_evicted_between_the_two_ends_of_a_fork() {
    let (engine, memory) = evicted_memory(4 * MIB, 25);
    memory.check(25);
    engine.before_fork();
    let ticket = ask(engine, Command::Evict);
    millis(100);
    let too_soon = answered(engine, ticket);
    engine.after_fork_in_parent();
    assert!(!too_soon, "the background thread worked during a fork");
    wait_until("the request is carried out", || answered(engine, ticket));
    memory.check(25);
}

/// A lock of the allocator's, for which the background thread waits where it has idle memory given back.
static HEAP: Mutex = Mutex::new(());
static DECAYS: AtomicU32 = AtomicU32::new(0);

#[test]
fn a_fork_lets_a_stop_that_has_begun_have_the_locks_of_the_allocator() {
    let decay = || {
        DECAYS.fetch_add(1, SeqCst);
        drop(HEAP.lock());
    };
    let engine = engine_whose_allocator(decay, 20, u64::MAX, "", "");
    let memory = Memory::new(engine, 4 * MIB);
    memory.fill(29);
    wait_until_evicted(engine, 4 * MIB);
    let (done, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|scope| {
        HEAP.acquire();
        let before = DECAYS.load(SeqCst);
        wait_until("the background thread waits for the allocator", || DECAYS.load(SeqCst) > before);
        scope.spawn(|| {
            engine.stop(&"the test is over");
            stopped.store(true, SeqCst);
        });
        wait_until("it is to stop", || engine.phase() == Phase::Stopping);
        scope.spawn(|| {
            while !engine.try_before_fork(None) {
                HEAP.release();
                millis(1);
                HEAP.acquire();
            }
            assert_eq!(engine.phase(), Phase::Off);
            engine.after_fork_in_parent();
            HEAP.release();
            done.store(true, SeqCst);
        });
        wait_until("both are over", || done.load(SeqCst) && stopped.load(SeqCst));
    });
    memory.check(29);
}

#[test]
fn what_a_child_may_write_to_its_stack_before_it_is_served_is_there_when_it_is_forked() {
    let (engine, memory) = evicted_memory(4 * MIB, 30);
    const BELOW: usize = 32 << 10;
    let top = memory.base + 2 * MIB + 100;
    assert!(engine.try_before_fork(Some(top)));
    let (there, rest) = (!engine.is_away(top - BELOW, BELOW), engine.is_away(memory.base, MIB));
    engine.after_fork_in_parent();
    assert!(there, "the child would find zeros under what it has written");
    assert!(rest, "nothing is away, and nothing is tested");
    memory.check(30);
}

#[test]
fn a_child_copes_with_pages_that_are_there_although_their_entries_say_otherwise() {
    let (engine, memory) = evicted_memory(4 * MIB, 26);
    // A parent restores page by page, and in the child the kernel must not make more of it.
    let memory = memory.in_small_pages();
    engine.before_fork();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        unsafe { libc::alarm(300) };
        // As when the parent's fault thread restores them between the copying of the entries and that of the pages.
        for page in 5..50 {
            unsafe { *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(26, page) };
        }
        engine.after_fork_in_child();
        let good = |memory: &Memory| {
            (0..memory.pages).all(|page| page_at(memory.base + page * PAGE_SIZE) == content(26, page))
        };
        let first = good(&memory);
        wait_until("the child's pager runs", || engine.phase() != Phase::Starting);
        engine.stop(&"the test is over");
        unsafe { libc::_exit(i32::from(!(first && good(&memory)))) };
    }
    engine.after_fork_in_parent();
    assert_eq!(wait(pid), 0, "the child read something else, or hung");
}

/// Memory all of which is there, and registered since it was away a moment ago.
fn registered_memory(seed: u64) -> (&'static memfold_pager::Engine, Memory) {
    let (engine, memory) = evicted_memory(8 * MIB, seed);
    have(engine, Command::Pause);
    memory.check(seed);
    (engine, memory)
}

#[test]
fn what_is_written_right_after_a_drop_past_libc_stays() {
    for round in 0..4 {
        let (engine, memory) = registered_memory(27);
        let ticket = ask(engine, Command::Evict);
        sleep(Duration::from_micros(500 * round));
        unsafe { mem::madvise(memory.base, 8 * MIB, libc::MADV_DONTNEED) }.unwrap();
        memory.fill(28);
        wait_until("the request is carried out", || answered(engine, ticket));
        memory.check(28);
    }
}

#[test]
fn what_is_mapped_where_an_unmapping_past_libc_is_not_reported_yet_stays() {
    for _ in 0..4 {
        let (engine, memory) = registered_memory(29);
        let (base, len) = (memory.base, 8 * MIB);
        scope(|scope| {
            scope.spawn(move || unsafe { mem::munmap(base, len) }.unwrap());
            // Until the range is gone; the thread that unmapped it may be asleep still.
            while unsafe { mem::madvise(base, len, libc::MADV_WILLNEED) }.is_ok() {
                std::hint::spin_loop();
            }
            map_fixed(base, len);
            memory.fill(30);
            have(engine, Command::Evict);
            memory.check(30);
        });
        memory.check(30);
    }
}

#[test]
fn readers_always_find_what_is_evicted_and_restored_under_them() {
    let (engine, memory) = evicted_memory(8 * MIB, 31);
    let over = AtomicBool::new(false);
    scope(|scope| {
        for stride in [1, 37] {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    (0..memory.pages).for_each(|n| memory.check_page(31, n * stride % memory.pages));
                }
            });
        }
        for _ in 0..20 {
            have(engine, Command::Evict);
            have(engine, Command::Restore);
        }
        over.store(true, Relaxed);
    });
}

/// A single thread reads scattered pages while the requests are carried out, again and again. Alone: another thread's
/// wake-up could make good for one that is missing. Scattered, and in small pages: so could a window.
fn a_lone_reader_gets_past(requests: &[Command]) {
    let engine = engine(20);
    let memory = Memory::new(engine, 8 * MIB);
    unsafe { mem::madvise(memory.base, 8 * MIB, libc::MADV_NOHUGEPAGE) }.unwrap();
    memory.fill(35);
    // An extent of which all is back is let go soon, which wakes whoever sleeps there, too.
    have(engine, Command::Pause);
    let over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                (0..memory.pages).for_each(|n| memory.check_page(35, n * 37 % memory.pages));
            }
        });
        (0..10).for_each(|_| requests.iter().for_each(|&request| have(engine, request)));
        over.store(true, Relaxed);
    });
}

#[test]
fn a_lone_reader_is_not_left_asleep_by_an_eviction() {
    a_lone_reader_gets_past(&[Command::Evict]);
}

#[test]
fn a_lone_reader_is_not_left_asleep_by_a_restore_ahead_of_it() {
    a_lone_reader_gets_past(&[Command::Evict, Command::Restore]);
}

#[test]
fn threads_that_sleep_on_neighbouring_pages_are_all_woken() {
    let (engine, memory) = evicted_memory(8 * MIB, 32);
    for _ in 0..8 {
        scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    // Side by side and forwards: what one waits for lies in the window of another.
                    (0..memory.pages / 4 - 1).for_each(|n| memory.check_page(32, n * 4 + thread));
                });
            }
        });
        have(engine, Command::Evict);
    }
}

#[test]
fn what_is_away_when_the_pager_stops_comes_back() {
    let (engine, memory) = evicted_memory(8 * MIB, 33);
    engine.stop(&"the test is over");
    memory.check(33);
}

#[test]
fn a_thread_inside_a_change_is_not_waited_for_by_one_that_faults_elsewhere() {
    let (engine, memory) = evicted_memory(8 * MIB, 34);
    let (addr, elsewhere) = (memory.base, memory.pages - 1);
    engine
        .protect(addr, PAGE_SIZE, true, || {
            let reader = spawn(move || page_at(addr + elsewhere * PAGE_SIZE) == content(34, elsewhere));
            assert!(reader.join().unwrap());
            Ok(())
        })
        .unwrap();
    memory.check(34);
}
