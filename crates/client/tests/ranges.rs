//! Ranges that come and go: folded, found unchanged, churned, refused.

// Every address here lies in a mapping that the test itself made.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_client::{register, stats, unregister, Error};
use memfold_sys::{mem, PAGE_SIZE};
use std::time::Duration;

const COLD_AGE: Duration = Duration::from_millis(20);

#[test]
fn a_registered_range_is_folded_and_reads_as_it_was() {
    started(COLD_AGE);
    let memory = Memory::new(16 * MIB, 1);
    register(memory.pointer(), memory.len).unwrap();
    wait_until("it is folded", || memory.present() == 0);
    wait_until("that is counted", || stats().evicted_bytes > 0);
    assert_eq!(stats().running, 1);
    assert!(memory.is_right());
    assert_eq!(stats().pages_lost, 0);
}

#[test]
fn a_range_registered_again_while_it_is_folded_keeps_its_bytes() {
    started(COLD_AGE);
    let memory = Memory::new(4 * MIB, 2);
    register(memory.pointer(), memory.len).unwrap();
    wait_until("it is folded", || memory.present() == 0);
    register(memory.pointer(), memory.len).unwrap();
    assert!(memory.is_right());
}

#[test]
fn an_unregistered_range_is_back_and_stays() {
    started(COLD_AGE);
    let (memory, other) = (Memory::new(4 * MIB, 3), Memory::new(4 * MIB, 4));
    register(memory.pointer(), memory.len).unwrap();
    wait_until("it is folded", || memory.present() == 0);
    unregister(memory.pointer(), memory.len).unwrap();
    assert_eq!(memory.present(), memory.pages());
    register(other.pointer(), other.len).unwrap();
    wait_until("another one is folded", || other.present() == 0);
    assert_eq!(memory.present(), memory.pages());
    register(memory.pointer(), memory.len).unwrap();
    wait_until("it is folded again", || memory.present() == 0);
    assert!(memory.is_right() && other.is_right());
}

#[test]
fn ranges_that_come_and_go_on_four_threads_always_read_right() {
    started(COLD_AGE);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..25u64 {
                    let len = (1 + (round % 3) as usize) * MIB;
                    let memory = Memory::new(len, 100 * thread + round);
                    register(memory.pointer(), len).unwrap();
                    std::thread::sleep(Duration::from_millis(10 + 17 * (round % 5)));
                    assert!(memory.is_right(), "thread {thread}, round {round}");
                    match round % 4 {
                        0 => unregister(memory.pointer(), len).unwrap(),
                        1 => {
                            unregister(memory.pointer(), len / 2).unwrap();
                            std::thread::sleep(Duration::from_millis(50));
                            assert!(memory.is_right(), "thread {thread}, round {round}, in part");
                        }
                        2 => {
                            unsafe { mem::madvise(memory.base, len, libc::MADV_DONTNEED) }.unwrap();
                            assert_eq!(
                                unsafe { *(memory.base as *const u64) },
                                0,
                                "dropped memory came back"
                            );
                        }
                        // Unmapped as it is.
                        _ => {}
                    }
                }
            });
        }
    });
    assert_eq!(stats().pages_lost, 0);
}

#[test]
fn what_is_no_private_anonymous_memory_is_refused_and_named() {
    started(COLD_AGE);
    let code = a_second_start_is_refused as *const u8;
    // Where nothing comes to lie that does not ask for the place, as the other tests do not.
    let (base, len) = (MIB, MIB);
    let why = |addr: *const u8, len| match register(addr, len) {
        Err(Error::NotFoldable { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(code, 2 * PAGE_SIZE).contains("r-xp"));
    assert_eq!(why(base as *const u8, len), "is not mapped");
    assert!(matches!(register(base as *const u8, 100), Err(Error::NoWholePage { len: 100, .. })));
}

#[test]
fn a_second_start_is_refused() {
    started(COLD_AGE);
    assert_eq!(memfold_client::start(&Default::default()), Err(Error::StartedBefore));
}
