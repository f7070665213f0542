//! Many forks beside a tier: files that children have, or had, leave room for what goes down afterwards, to parents and children.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_pager::tier::clusters::FILES;
use memfold_pager::tier::CLUSTER;
use memfold_pager::Engine;
use memfold_sys::PAGE_SIZE;
use std::io::Read;
use std::sync::atomic::Ordering::*;

/// More than there can be files.
const ROUNDS: usize = FILES + 8;
const LEN: usize = 8 * MIB;

/// Writes a cluster of its own in each round, of which a copy goes down that stays there.
fn write_round(engine: &'static Engine, memory: &Memory, round: usize) {
    for page in round * CLUSTER..(round + 1) * CLUSTER {
        unsafe { *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(2, page) };
    }
    // So few pages are worth no call to the kernel before it is told to.
    wait_until("it went down", || {
        have(engine, Command::Evict);
        below(engine) == LEN as u64
    });
}

/// That everything is what it was after so many rounds.
fn check_rounds(memory: &Memory, rounds: usize) {
    (0..memory.pages).for_each(|page| memory.check_page(if page < rounds * CLUSTER { 2 } else { 1 }, page));
}

/// Ends a child that has found everything right.
fn end() -> ! {
    unsafe { libc::_exit(0) }
}

#[test]
fn after_any_number_of_forks_one_after_another_the_tier_takes_what_is_cold() {
    let (engine, memory, directory) = memory_below(LEN, 1);
    for round in 0..ROUNDS {
        let pid = fork(engine);
        if pid == 0 {
            end();
        }
        assert_eq!(wait(pid), 0);
        write_round(engine, &memory, round);
    }
    // It is looked now and then which of them children have still.
    wait_until("few files are left", || files_in(&directory).len() < FILES);
    check_rounds(&memory, ROUNDS);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn where_each_child_lives_until_the_next_fork_the_tier_takes_what_is_cold_and_children_find_every_byte() {
    let (engine, memory, _directory) = memory_below(LEN, 1);
    let mut before = None;
    for round in 0..ROUNDS {
        let (mut ended, tell) = std::io::pipe().unwrap();
        let pid = fork(engine);
        if pid == 0 {
            drop((tell, before));
            // Until its parent lets go of it.
            let _ = ended.read(&mut [0]);
            check_rounds(&memory, round);
            end();
        }
        if let Some((pid, tell)) = before.replace((pid, tell)) {
            drop(tell);
            assert_eq!(wait(pid), 0);
        }
        write_round(engine, &memory, round);
    }
    let (last, tell) = before.unwrap();
    drop(tell);
    assert_eq!(wait(last), 0);
    check_rounds(&memory, ROUNDS);
    assert!(engine.control().tier_moves.load(Relaxed) > 0);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn a_child_of_any_generation_has_files_of_its_own() {
    let (engine, memory, _directory) = memory_below(LEN, 1);
    for round in 0..ROUNDS {
        let pid = fork(engine);
        if pid != 0 {
            let status = wait(pid);
            if round == 0 {
                assert_eq!(status, 0, "a child found something else, or had no room");
                break;
            }
            check_rounds(&memory, round);
            unsafe { libc::_exit((status != 0).into()) };
        }
        write_round(engine, &memory, round);
        if round + 1 == ROUNDS {
            check_rounds(&memory, ROUNDS);
            end();
        }
    }
    check_rounds(&memory, 0);
}
