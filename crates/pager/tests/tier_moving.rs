//! Compaction of a tier: what is left of a segment moves to another place, and the segment is given back.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_sys::PAGE_SIZE;
use std::sync::atomic::Ordering::*;
use std::thread;

#[test]
fn what_is_left_of_an_unsealed_segment_moves_and_comes_back_whole() {
    let (engine, _directory) = engine_with_unsealed_tier(20, "1G");
    let memory = Memory::new(engine, 64 * MIB);
    memory.fill(8);
    wait_until("everything went down", || below(engine) == 64 * MIB as u64);
    // None move for as long as a program that wakes may want much.
    let mut last = 8;
    wait_until("clusters move", || {
        last += 1;
        write_most(&memory, last);
        engine.control().tier_moves.load(Relaxed) > 0
    });
    for page in 0..memory.pages {
        memory.check_page(if page % 512 >= 64 { last } else { 8 }, page);
    }
}

#[test]
fn what_is_left_of_a_segment_moves_and_the_segment_goes_back() {
    let (engine, memory, _directory) = memory_below(64 * MIB, 1);
    let took = || engine.control().tier_file_bytes.load(Relaxed);
    let before = took();
    // A child reads what lies where it lay, however its parent moves its own.
    let pid = fork(engine);
    if pid == 0 {
        thread::sleep(std::time::Duration::from_millis(300));
        memory.check(1);
        unsafe { libc::_exit(0) };
    }
    let mut round = 1;
    let mut write = || {
        round += 1;
        write_most(&memory, round);
        wait_until("everything is below", || below(engine) == 64 * MIB as u64);
        round
    };
    for _ in 0..3 {
        write();
    }
    assert_eq!(wait(pid), 0);
    // What is left moves while the rest is on its way, and nothing that a child may want: that there is none is known a while later.
    let mut last = 0;
    wait_until("the files shrink", || {
        last = write();
        took() <= before + before / 4
    });
    assert!(before >= 8 * MIB as u64 && engine.control().tier_moves.load(Relaxed) > 0, "{before}");
    (0..memory.pages).for_each(|page| memory.check_page(if page % 512 >= 64 { last } else { 1 }, page));
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn what_moves_while_nothing_of_it_is_wanted_any_more_leaves_nothing_behind() {
    let (engine, memory, _directory) = memory_below(32 * MIB, 1);
    let (control, all) = (engine.control(), 32 * MIB as u64);
    for _ in 0..3 {
        let moves = || control.tier_moves.load(Relaxed);
        let before = moves();
        // Of each extent an eighth stays where it is, until it moves.
        let mut number = 2;
        while moves() == before {
            write_most(&memory, number);
            wait_until("everything is below, or moves", || below(engine) == all || moves() > before);
            number += 1;
        }
        memory.fill(1);
        wait_until("everything is below", || below(engine) == all);
    }
    memory.check(1);
    assert_eq!(control.pages_lost.load(Relaxed), 0);
}

/// Writes seven eighths of each extent anew, which go down to other places than the rest.
fn write_most(memory: &Memory, seed: u64) {
    for page in (0..memory.pages).filter(|page| page % 512 >= 64) {
        unsafe { *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(seed, page) };
    }
}
