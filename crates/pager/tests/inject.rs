//! The kernel says no, at every call that the engine makes, again and again; and no byte is lost.
//!
//! Built with the feature `inject` only: `cargo test -p memfold-pager --features inject --test inject`. One test, since the
//! plan and its counters belong to the whole process.
#![cfg(feature = "inject")]
// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::Phase;
use memfold_sys::inject::{self, Point};
use memfold_sys::{mem, Result, PAGE_SIZE};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Rounds, each with an engine of its own, after which every point must have failed.
const LEAST_ROUNDS: u64 = 12;
const MOST_ROUNDS: u64 = 30;

/// An engine that has begun to run; one that could not, because the kernel said no, is what a program runs without.
fn running_engine() -> &'static memfold_pager::Engine {
    loop {
        // What was evicted goes on to a tier at once, which cannot be written or read at times.
        let engine = engine_of(20, u64::MAX, "disk=/var/tmp,size=64M,after=10ms");
        let memory = Memory::new(engine, MIB);
        wait_until("the engine has made up its mind", || {
            !matches!(engine.phase(), Phase::Idle | Phase::Starting)
        });
        memory.fill(1);
        memory.check(1);
        if engine.phase() == Phase::Running {
            return engine;
        }
    }
}

/// Has everything evicted that can be, for a while.
fn evict(engine: &'static memfold_pager::Engine) {
    (0..3).for_each(|_| have(engine, Command::Evict));
}

/// Moves 8 MiB. Refused where a range could not be unregistered: then it is several mappings, and nothing has happened.
fn move_to_a_place_of_choice(engine: &'static memfold_pager::Engine, base: usize) -> Result<usize> {
    let target = mem::map_anonymous(0, 8 * MIB, 0).unwrap();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    engine.remap(base, 8 * MIB, 8 * MIB, Some(target), || unsafe {
        mem::mremap(base, 8 * MIB, 8 * MIB, flags, target)
    })
}

/// The same, of which the engine is not told, to a place that the kernel chooses, as there is no room to grow: of several mappings that are
/// moved to a place of choice, Linux 6.17 has moved some when it refuses others.
fn move_untold(base: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // Something is there, or comes to be.
    let _ = unsafe { mem::mmap(base + 8 * MIB, PAGE_SIZE, libc::PROT_NONE, flags, -1, 0) };
    let longer = 8 * MIB + PAGE_SIZE;
    let moved = unsafe { mem::mremap(base, 8 * MIB, longer, libc::MREMAP_MAYMOVE, 0) }?;
    unsafe { mem::munmap(moved + 8 * MIB, PAGE_SIZE) }?;
    Ok(moved)
}

fn live_a_life(seed: u64) {
    let engine = running_engine();
    let mut memory = Memory::new(engine, 8 * MIB);
    memory.fill(seed);
    evict(engine);
    std::thread::scope(|scope| {
        for stride in [1, 37] {
            let memory = &memory;
            scope.spawn(move || {
                (0..memory.pages).for_each(|n| memory.check_page(seed, n * stride % memory.pages))
            });
        }
        evict(engine);
    });
    // A drop, and first touches of what was dropped.
    let (addr, len) = (memory.base + MIB, MIB / 2);
    evict(engine);
    engine
        .drop_contents(addr, len, || unsafe {
            memfold_sys::syscall!(madvise, addr, len, libc::MADV_DONTNEED)
        })
        .unwrap();
    let first = (addr - memory.base) / PAGE_SIZE;
    for page in first..first + len / PAGE_SIZE {
        let at = memory.base + page * PAGE_SIZE;
        assert!(page_at(at) == [0; PAGE_SIZE / 8], "page {page} came back from the dead");
        unsafe { *(at as *mut [u64; PAGE_SIZE / 8]) = content(seed, page) };
    }
    evict(engine);
    // A move that the engine is told of, and one that it is not.
    for told in [true, false] {
        let moved =
            if told { move_to_a_place_of_choice(engine, memory.base) } else { move_untold(memory.base) };
        memory.base = moved.unwrap_or(memory.base);
        memory.check(seed);
        evict(engine);
    }
    let pid = fork(engine);
    if pid == 0 {
        let good =
            (0..memory.pages).all(|page| page_at(memory.base + page * PAGE_SIZE) == content(seed, page));
        unsafe { libc::_exit(i32::from(!good)) };
    }
    memory.check(seed);
    assert_eq!(wait(pid), 0, "a child read something else, died or hung");
    let rest = Memory::new(engine, 4 * MIB);
    rest.fill(seed);
    evict(engine);
    engine.stop(&"the round is over");
    memory.check(seed);
    rest.check(seed);
}

/// Touches huge pages that are set aside, of which a move or copy may be done in part.
fn touch_what_was_huge(seed: u64) {
    const HUGE: usize = 2 * MIB;
    let engine = engine(500);
    let memory = Memory::new(engine, 8 * HUGE).in_huge_pages();
    wait_until("the engine has made up its mind", || {
        !matches!(engine.phase(), Phase::Idle | Phase::Starting)
    });
    memory.fill(seed);
    if engine.phase() == Phase::Running {
        // As much as is not refused.
        let aside = || engine.control().aside_bytes.load(Relaxed);
        for _ in 0..500 {
            if aside() >= 4 * HUGE as u64 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It would be compressed soon.
        let hour = 3_600_000_000_000;
        request(engine, Command::Set, Setting::ColdAge as u64, hour, "");
        // The last page of each, and who touches the first halves of them at the same time.
        let ends = (memory.base.next_multiple_of(HUGE)..memory.base + 8 * HUGE).step_by(HUGE);
        for end in ends.filter(|end| *end > memory.base) {
            memory.check_page(seed, (end - memory.base) / PAGE_SIZE - 1);
        }
    }
    memory.check(seed);
    engine.stop(&"the round is over");
    memory.check(seed);
}

#[test]
fn every_kernel_call_of_the_engine_fails_at_times_and_no_byte_is_lost() {
    // By this plan the first to fail of each kind is one of its first 25 calls.
    std::env::set_var("MEMFOLD_INJECT", "6");
    let failed = |point: Point| inject::counted(point).1;
    let began = Instant::now();
    for seed in 1..=MOST_ROUNDS {
        live_a_life(seed);
        touch_what_was_huge(seed);
        assert!(began.elapsed() < Duration::from_secs(240), "something waits for what never comes");
        if seed >= LEAST_ROUNDS && Point::ALL.iter().all(|&point| failed(point) > 0) {
            break;
        }
    }
    for point in Point::ALL {
        let (calls, failures) = inject::counted(point);
        println!("{:13} {calls:8} calls, {failures:6} failed", point.name());
        assert!(failures > 0, "{} never failed, in {calls} calls", point.name());
    }
}
