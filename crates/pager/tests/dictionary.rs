//! Dictionaries that are made of a program's pages while it runs: pages that need one come back whole, whatever becomes of it.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_pager::Engine;
#[cfg(feature = "inject")]
use memfold_pager::{training::Samples, Phase};
use memfold_sys::{mem, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

/// A page of records that many others have words in common with; another vocabulary for each `seed`.
fn records(seed: u64, page: usize) -> [u8; PAGE_SIZE] {
    let mut state = seed << 40 ^ (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let word = |n: u64| -> String {
        let mut z = (n + 1).wrapping_mul(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15));
        (0..6 + n % 9)
            .map(|_| {
                z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                (b'a' + (z >> 40) as u8 % 26) as char
            })
            .collect()
    };
    let mut text = String::new();
    while text.len() < PAGE_SIZE {
        let (a, b, c) = (random(300), random(300), random(300));
        text += &format!("{{\"{}\":{},\"{}\":\"{}\"}},", word(a), random(100_000), word(b), word(c));
    }
    text.as_bytes()[..PAGE_SIZE].try_into().unwrap()
}

struct Records(Memory);

impl Records {
    fn new(engine: &'static Engine, len: usize) -> Records {
        Records(Memory::new(engine, len).in_small_pages())
    }

    fn fill(&self, seed: u64) {
        for page in 0..self.0.pages {
            unsafe { *((self.0.base + page * PAGE_SIZE) as *mut [u8; PAGE_SIZE]) = records(seed, page) };
        }
    }

    /// Whether every `step`th page is what it was.
    fn are_right(&self, seed: u64, step: usize) -> bool {
        (0..self.0.pages).step_by(step).all(|page| {
            let found = unsafe { *((self.0.base + page * PAGE_SIZE) as *const [u8; PAGE_SIZE]) };
            found == records(seed, page)
        })
    }

    fn unmap(self, engine: &'static Engine) {
        let len = self.0.pages * PAGE_SIZE;
        engine.unmap(self.0.base, len, || unsafe { mem::munmap(self.0.base, len) }).unwrap();
    }
}

fn made(engine: &'static Engine) -> u64 {
    engine.control().dictionaries_made.load(Relaxed)
}

fn dictionary_bytes(engine: &'static Engine) -> u64 {
    engine.control().dictionary_bytes.load(Relaxed)
}

#[test]
fn pages_with_words_in_common_come_back_whole_also_in_a_child() {
    let engine = engine(20);
    let memory = Records::new(engine, 32 * MIB);
    memory.fill(1);
    wait_until("nearly everything is evicted", || evicted(engine) >= 31 * MIB as u64);
    assert_ne!(made(engine), 0, "no dictionary was made");
    let child = fork(engine);
    if child == 0 {
        // It must not unwind into the harness.
        unsafe { libc::_exit(i32::from(!memory.are_right(1, 7))) };
    }
    assert_eq!(wait(child), 0, "the child read other bytes, or died");
    assert!(memory.are_right(1, 1));
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn a_program_that_changes_what_it_holds_has_another_and_the_old_goes_when_no_page_needs_it() {
    let engine = engine(10);
    let first = Records::new(engine, 24 * MIB);
    first.fill(1);
    wait_until("nearly everything is evicted", || evicted(engine) >= 23 * MIB as u64);
    assert_eq!(made(engine), 1, "dictionaries");
    let one = dictionary_bytes(engine);
    assert_ne!(one, 0);
    let second = Records::new(engine, 112 * MIB);
    second.fill(2);
    wait_until("nearly everything is evicted", || evicted(engine) >= 132 * MIB as u64);
    assert!(made(engine) >= 2, "none was made of what the program holds now");
    assert!(dictionary_bytes(engine) > one, "what pages need still was dropped");
    assert!(first.are_right(1, 5) && second.are_right(2, 5));
    first.unmap(engine);
    second.unmap(engine);
    wait_until("one is left, for what comes", || dictionary_bytes(engine) <= one + one / 2);
}

#[test]
fn nothing_is_learnt_where_memory_is_wiped_at_once() {
    let engine = engine(10);
    engine.wipe_at_once();
    let memory = Records::new(engine, 32 * MIB);
    memory.fill(1);
    have(engine, Command::Evict);
    assert!(evicted(engine) >= 31 * MIB as u64);
    assert_eq!((made(engine), dictionary_bytes(engine)), (0, 0));
    assert!(memory.are_right(1, 3));
}

#[cfg(feature = "inject")]
#[test]
fn without_memory_to_learn_in_everything_is_folded_and_comes_back_whole() {
    use memfold_sys::inject::refuse_maps;
    let fold = |lengths: std::ops::Range<usize>| {
        let engine = engine(20);
        let memory = Records::new(engine, 32 * MIB);
        // Whose threads cannot work without memory.
        wait_until("it runs", || engine.phase() == Phase::Running);
        refuse_maps(lengths);
        memory.fill(1);
        wait_until("nearly everything is evicted", || evicted(engine) >= 31 * MIB as u64);
        let refused = refuse_maps(0..0);
        let (made, bytes) = (made(engine), dictionary_bytes(engine) as usize);
        assert!(memory.are_right(1, 1));
        assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
        memory.unmap(engine);
        engine.stop(&"there is another");
        (refused, made, bytes)
    };
    let (_, made, one) = fold(0..0);
    assert_eq!(made, 1, "dictionaries");
    // Neither the samples, nor what would be made of them.
    for lengths in [Samples::BYTES..Samples::BYTES + 1, one - 4 * PAGE_SIZE..one + 4 * PAGE_SIZE] {
        let (refused, made, bytes) = fold(lengths);
        assert_ne!(refused, 0, "nothing was to be learnt");
        assert_eq!((made, bytes), (0, 0));
    }
}
