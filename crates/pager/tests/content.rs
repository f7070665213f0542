//! Bytes through codec and store: what is odd about a page, or about the order in which slots come and go, must not show.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_sys::PAGE_SIZE;
use std::sync::atomic::Ordering::*;

#[test]
fn pages_that_begin_alike_and_end_otherwise_come_back_whole() {
    let engine = engine(20);
    let memory = Memory::new(engine, 4 * MIB);
    let expected = |page: usize| -> [u64; PAGE_SIZE / 8] {
        let mut words = [page as u64; PAGE_SIZE / 8];
        // The last word of all, or one in the middle, or none.
        match page % 3 {
            0 => words[511] = !0,
            1 => words[64 + page % 400] ^= 1,
            _ => {}
        }
        words
    };
    memory.fill_with(expected);
    wait_until_evicted(engine, 4 * MIB);
    memory.check_with(expected);
}

#[test]
fn bytes_that_do_not_shrink_stay_what_they_are() {
    let engine = engine(20);
    let memory = Memory::new(engine, 4 * MIB);
    let words = unsafe { std::slice::from_raw_parts_mut(memory.base as *mut u64, 4 * MIB / 8) };
    let noise = |n: usize| {
        let z = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    words.iter_mut().enumerate().for_each(|(n, word)| *word = noise(n));
    have(engine, Command::Evict);
    let wrong = words.iter().enumerate().find(|&(n, word)| *word != noise(n));
    assert_eq!(wrong, None);
}

#[test]
fn slots_that_come_and_go_in_any_order_keep_their_bytes() {
    let engine = engine_in_haste(10);
    let memory = Memory::new(engine, 16 * MIB);
    memory.fill(1);
    let mut seeds = vec![1u64; memory.pages];
    for round in 2..8u64 {
        wait_until("most is evicted", || evicted(engine) >= 14 * MIB as u64);
        let (recompressed, control) = (engine.control().pages_recompressed.load(Relaxed), engine.control());
        wait_until("some is compressed again", || {
            control.pages_recompressed.load(Relaxed) > recompressed || round > 3
        });
        // What is rewritten leaves gaps in the store, which is packed and filled anew.
        for page in (0..memory.pages).filter(|page| (page * 7 + round as usize * 13) % 5 < 3) {
            memory.check_page(seeds[page], page);
            seeds[page] = round;
            unsafe {
                *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(round, page);
            }
        }
    }
    (0..memory.pages).for_each(|page| memory.check_page(seeds[page], page));
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}
