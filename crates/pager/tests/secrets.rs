//! What the program erases, gives up or has elsewhere by now does not live on in the pager: not in the store, not in staging, and not
//! in the working memory of its threads.
//!
//! A secret is 32 bytes, of which each 8 follow from the 8 before, so it is known wherever it lies, whole or in part, and who looks
//! for it has no copy. Everything that is mapped is looked through, as a core dump would have it.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::Engine;
use memfold_sys::{mem, PAGE_SIZE};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;

const LEN: usize = 8 * MIB;

/// The word that follows (the output function of SplitMix64, which is a permutation).
fn next(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// Where page `n` has its secret.
fn place(memory: &Memory, page: usize) -> *mut u64 {
    (memory.base + page * PAGE_SIZE + page % 16 * 32) as *mut u64
}

/// The pages with secrets: all but one in each extent, which nobody touches, so that what an extent has in staging is not given
/// back because all of it came back.
fn pages(memory: &Memory) -> impl Iterator<Item = usize> {
    (0..memory.pages).filter(|page| page % 512 != 300)
}

/// A secret in each of those pages, which shrink by the half that is empty. The rest is noise, which every codec stores as it is, so that
/// who looks finds the secret in it.
fn confide(memory: &Memory) {
    const WORDS: usize = PAGE_SIZE / 8;
    memory.fill(7);
    for page in pages(memory) {
        let start = (memory.base + page * PAGE_SIZE) as *mut u64;
        for n in 0..WORDS {
            let noise = if n < WORDS / 2 { next((page * WORDS + n) as u64) } else { 0 };
            unsafe { start.add(n).write_volatile(noise) };
        }
        let mut word = page as u64 + 1;
        for n in 0..4 {
            word = next(word);
            unsafe { place(memory, page).add(n).write_volatile(word) };
        }
    }
}

/// Overwrites the secrets, by which their pages come back.
fn erase(memory: &Memory) {
    for page in pages(memory) {
        (0..4).for_each(|n| unsafe { place(memory, page).add(n).write_volatile(0) });
    }
}

/// Where secrets are in this process, each with how many.
fn found() -> Vec<(String, usize)> {
    // Of its own, so that what it holds can be left out.
    let buffer = mem::map_anonymous(0, MIB, 0).unwrap();
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer as *mut u8, MIB) };
    let (memory, pagemap) =
        (File::open("/proc/self/mem").unwrap(), File::open("/proc/self/pagemap").unwrap());
    let mut all = Vec::new();
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (lo, hi) = range.split_once('-').unwrap();
        let [lo, hi] = [lo, hi].map(|text| usize::from_str_radix(text, 16).unwrap_or(usize::MAX));
        if !rights.starts_with('r') || line.contains("[v") {
            continue;
        }
        let mut count = 0;
        for part in (lo..hi).step_by(MIB).filter(|part| !(buffer..buffer + MIB).contains(part)) {
            let len = (hi - part).min(MIB);
            count += secrets_in_part(&memory, &pagemap, part, &mut bytes[..len]);
        }
        if count != 0 {
            all.push((line.to_owned(), count));
        }
    }
    unsafe { mem::munmap(buffer, MIB) }.unwrap();
    all
}

/// Secrets in what is in memory of a part of the address space; what is away is not brought back for the question.
fn secrets_in_part(memory: &File, pagemap: &File, part: usize, bytes: &mut [u8]) -> usize {
    let mut entries = vec![0; bytes.len() / PAGE_SIZE * 8];
    if pagemap.read_exact_at(&mut entries, (part / PAGE_SIZE * 8) as u64).is_err() {
        return 0;
    }
    let mut count = 0;
    for (n, entry) in entries.chunks_exact(8).enumerate() {
        let page = &mut bytes[n * PAGE_SIZE..][..PAGE_SIZE];
        // Present, or in swap space.
        let is_there = u64::from_le_bytes(entry.try_into().unwrap()) >> 62 != 0;
        if is_there && memory.read_exact_at(page, (part + n * PAGE_SIZE) as u64).is_ok() {
            let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
            let is_secret = |at: &usize| word(*at) != 0 && next(word(*at)) == word(at + 8);
            count += (0..=PAGE_SIZE - 16).filter(is_secret).count();
        }
    }
    count
}

/// Waits until there is no secret anywhere. That it takes a second at most is the clock's of the background thread, and no test's.
fn wait_until_forgotten(what: &str) {
    let mut left = Vec::new();
    for _ in 0..200 {
        left = found();
        if left.is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{what}: still {left:?}");
}

/// From now on pages leave when they are told to.
fn hold_still(engine: &'static Engine) {
    let hour = 3_600_000_000_000;
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, hour, ""), 0);
}

/// Memory with secrets, all of it stored; `dense`: some of it by the fastest codec first, and again by the strong one.
fn stored(dense: bool) -> (&'static Engine, Memory) {
    let engine = if dense { engine_in_haste(20) } else { engine(20) };
    let memory = Memory::new(engine, LEN).in_small_pages();
    confide(&memory);
    wait_until_evicted(engine, LEN);
    wait_until("it is compressed again", || !dense || engine.control().pages_recompressed.load(Relaxed) != 0);
    hold_still(engine);
    assert_ne!(found(), [], "nothing is in the store, and nothing is tested");
    (engine, memory)
}

#[test]
fn what_is_erased_after_it_was_stored() {
    let (engine, memory) = stored(false);
    erase(&memory);
    wait_until_forgotten("erased secrets");
    engine.stop(&"the test is over");
}

#[test]
fn what_is_erased_after_it_was_compressed_twice() {
    let (engine, memory) = stored(true);
    erase(&memory);
    wait_until_forgotten("erased secrets");
    engine.stop(&"the test is over");
}

#[test]
fn what_is_given_up_while_it_is_stored() {
    let (engine, memory) = stored(false);
    let half = LEN / 2;
    engine
        .drop_contents(memory.base, half, || unsafe { mem::madvise(memory.base, half, libc::MADV_DONTNEED) })
        .unwrap();
    let rest = memory.base + half;
    engine.unmap(rest, half, || unsafe { mem::munmap(rest, half) }).unwrap();
    wait_until_forgotten("secrets that were given up");
    engine.stop(&"the test is over");
}

/// Memory with secrets, of which something is set aside and not compressed yet.
fn aside(small: bool) -> (&'static Engine, Memory) {
    let engine = engine(2000);
    let memory = Memory::new(engine, LEN);
    let memory = if small { memory.in_small_pages() } else { memory.in_huge_pages() };
    confide(&memory);
    wait_until("something is set aside", || engine.control().aside_bytes.load(Relaxed) != 0);
    // It is not compressed before it is twice as old as now.
    hold_still(engine);
    assert_ne!(engine.control().aside_bytes.load(Relaxed), 0, "nothing is set aside any more");
    (engine, memory)
}

#[test]
fn what_is_erased_while_it_is_set_aside() {
    for small in [true, false] {
        let (engine, memory) = aside(small);
        erase(&memory);
        wait_until_forgotten("erased secrets");
        engine.stop(&"the test is over");
    }
}

#[test]
fn what_is_given_up_while_it_is_set_aside() {
    for small in [true, false] {
        let (engine, memory) = aside(small);
        // Every other page, so that the rest keeps what they lie in.
        for page in pages(&memory).filter(|page| page % 2 == 0) {
            let addr = memory.base + page * PAGE_SIZE;
            engine
                .drop_contents(addr, PAGE_SIZE, || unsafe {
                    mem::madvise(addr, PAGE_SIZE, libc::MADV_DONTNEED)
                })
                .unwrap();
        }
        for page in pages(&memory).filter(|page| page % 2 == 1) {
            (0..4).for_each(|n| unsafe { place(&memory, page).add(n).write_volatile(0) });
        }
        wait_until_forgotten("secrets that were given up");
        engine.stop(&"the test is over");
    }
}

#[test]
fn what_is_kept_from_children_is_not_in_working_memory_when_they_are_forked() {
    let engine = engine(20);
    let memory = Memory::new(engine, 4 * LEN).in_small_pages();
    let advise = || unsafe { mem::madvise(memory.base, 4 * LEN, libc::MADV_DONTFORK) };
    engine.set_forked(memory.base, 4 * LEN, false, advise).unwrap();
    let went = || engine.control().pages_evicted.load(Relaxed);
    for round in 0..5 {
        let before = went();
        confide(&memory);
        // In the middle of it.
        wait_until("some of it is evicted", || went() > before);
        let pid = fork(engine);
        if pid == 0 {
            unsafe { libc::_exit(found().len() as i32) };
        }
        assert_eq!(wait(pid), 0, "a child found secrets in round {round}");
        wait_until("the rest is evicted", || evicted(engine) == 4 * LEN as u64);
    }
    // Which another test would find.
    engine.unmap(memory.base, 4 * LEN, || unsafe { mem::munmap(memory.base, 4 * LEN) }).unwrap();
    engine.stop(&"the test is over");
}

/// Memory of the engine's that no core dump has.
fn undumped(engine: &'static Engine, len: usize) -> Memory {
    let memory = Memory::new(engine, len);
    set_dumped(engine, &memory, len, false);
    memory
}

fn set_dumped(engine: &'static Engine, memory: &Memory, len: usize, dumped: bool) {
    let advice = if dumped { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
    let advise = || unsafe { mem::madvise(memory.base, len, advice) };
    engine.set_dumped(memory.base, len, dumped, advise).unwrap();
}

#[test]
fn a_word_that_no_core_dump_has_is_not_in_the_tables_where_these_have_it() {
    let engine = engine(20);
    let memory = undumped(engine, LEN);
    let same = || engine.control().pages_same_value.load(Relaxed);
    let went = || engine.control().pages_evicted.load(Relaxed);
    for (word, dumped, kept_as_word) in
        [(0x4242_4242_4242_4242, false, false), (0, false, true), (0x4242_4242_4242_4242, true, true)]
    {
        set_dumped(engine, &memory, LEN, dumped);
        let (before, gone) = (same(), went());
        memory.fill_with(|_| [word; PAGE_SIZE / 8]);
        wait_until("all of it went anew", || went() - gone >= memory.pages as u64);
        wait_until_evicted(engine, LEN);
        // A page that was about to be written may go as zeros.
        let words = (same() - before) as usize;
        assert_eq!(words >= memory.pages / 2, kept_as_word, "{words} of {word:#x}, dumped: {dumped}");
        memory.check_with(|_| [word; PAGE_SIZE / 8]);
    }
    engine.stop(&"the test is over");
}

#[test]
fn what_no_core_dump_has_stays_above_a_tier_until_dumps_have_it() {
    let (engine, _directory) = engine_with_tier("1G");
    let (kept, other) = (undumped(engine, LEN), Memory::new(engine, LEN));
    for seed in 1..3 {
        kept.fill(seed);
        other.fill(seed);
        wait_until("the other went down", || below(engine) == LEN as u64);
        wait_until_evicted(engine, 2 * LEN);
        kept.check(seed);
        other.check(seed);
    }
    set_dumped(engine, &kept, LEN, true);
    kept.fill(3);
    other.fill(3);
    wait_until("all went down", || below(engine) == 2 * LEN as u64);
    kept.check(3);
    engine.stop(&"the test is over");
}
