//! What lies in a tier's files: sealed or not, nothing that was changed there is taken for the program's.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_pager::Engine;
use memfold_sys::PAGE_SIZE;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;

fn read_whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn nothing_of_the_program_can_be_read_in_the_file_and_what_was_changed_there_is_never_taken_for_it() {
    let (engine, directory) = engine_with_tier("64M");
    let memory = Memory::new(engine, 4 * MIB);
    // Compressed, such bytes stay what they are.
    let secret = b"the program's own words, 0123456789 abcdefghijklmnopqrstuvwxyz";
    for page in 0..memory.pages {
        let at = (memory.base + page * PAGE_SIZE) as *mut u8;
        unsafe {
            at.copy_from(secret.as_ptr(), secret.len());
            at.add(1000).cast::<u64>().write_unaligned(page as u64);
        }
    }
    wait_until("everything went down", || below(engine) == 4 * MIB as u64);
    let files = files_in(&directory);
    assert_eq!(files.len(), 1);
    let bytes = read_whole(&files[0]);
    assert!(!bytes.windows(16).any(|window| secret.windows(16).step_by(16).any(|part| part == window)));
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "it has a name");
    let pid = fork(engine);
    if pid == 0 {
        // No core, please: the child is to end by abort.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
        let found = unsafe { (memory.base as *const u8).read_volatile() };
        unsafe { libc::_exit(i32::from(found)) };
    }
    // Whichever the child reads, one bit of it is another.
    let mut changed = bytes.clone();
    changed.iter_mut().step_by(97).for_each(|byte| *byte ^= 4);
    files[0].write_all_at(&changed, 0).unwrap();
    let status = wait(pid);
    // What the child had read before that may be right.
    let ended_hard = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT;
    let read_before = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == i32::from(secret[0]);
    assert!(ended_hard || read_before, "the child read something else: {status:#x}");
    let pid = fork(engine);
    if pid == 0 {
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
        let last = memory.base + (memory.pages - 1) * PAGE_SIZE;
        let found = unsafe { (last as *const u8).read_volatile() };
        unsafe { libc::_exit(i32::from(found)) };
    }
    let status = wait(pid);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:#x}");
    // As it was, it is the program's again.
    files[0].write_all_at(&bytes, 0).unwrap();
    for page in 0..memory.pages {
        let at = (memory.base + page * PAGE_SIZE) as *const u8;
        let (words, number) = unsafe {
            (std::slice::from_raw_parts(at, secret.len()), at.add(1000).cast::<u64>().read_unaligned())
        };
        assert!(words == secret && number == page as u64, "page {page} changed");
    }
}

/// Has a child read one word of this page. Returns how it ended, and what it said: nothing where the engines of other tests have more agents than
/// one process has.
fn read_in_child(engine: &'static Engine, page: usize) -> (i32, String) {
    let mut said = tempfile::tempfile().unwrap();
    let pid = fork(engine);
    if pid == 0 {
        // No core, please: the child is to end by abort.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            libc::dup2(said.as_raw_fd(), 2);
            let found = (page as *const u64).read_volatile();
            libc::_exit(i32::from(found == 0));
        }
    }
    let status = wait(pid);
    let mut text = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut text).unwrap();
    (status, text)
}

fn aborted(status: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT
}

#[test]
fn what_went_down_unsealed_can_be_read_in_the_file_and_comes_back_whole() {
    let (engine, directory) = engine_with_unsealed_tier(20, "64M");
    let memory = Memory::new(engine, 4 * MIB);
    let words = b"the program's own words, 0123456789 abcdefghijklmnopqrstuvwxyz";
    for page in 0..memory.pages {
        unsafe { ((memory.base + page * PAGE_SIZE) as *mut u8).copy_from(words.as_ptr(), words.len()) };
    }
    wait_until("everything went down", || below(engine) == 4 * MIB as u64);
    let bytes = read_whole(&files_in(&directory)[0]);
    assert!(bytes.windows(words.len()).any(|window| window == words), "they are sealed");
    memory.fill(2);
    wait_until("everything went down again", || below(engine) == 4 * MIB as u64);
    let pid = fork(engine);
    if pid == 0 {
        memory.check(2);
        let grandchild = fork(engine);
        if grandchild == 0 {
            memory.check(2);
            unsafe { libc::_exit(0) };
        }
        memory.fill(3);
        memory.check(3);
        unsafe { libc::_exit(wait(grandchild)) };
    }
    memory.check(2);
    memory.fill(4);
    assert_eq!(wait(pid), 0);
    memory.check(4);
    assert_eq!(engine.control().tier_errors.load(Relaxed), 0);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn of_what_is_unsealed_a_flipped_bit_a_hole_and_another_cluster_are_never_taken_for_it() {
    // One cluster after another, each of sixteen pages that were compressed in one moment.
    const PAGES: usize = 16;
    let (engine, directory) = engine_with_unsealed_tier(3_600_000, "64M");
    let memory = Memory::new(engine, PAGES * PAGE_SIZE);
    let all = (PAGES * PAGE_SIZE) as u64;
    let go_down = |seed| {
        let written = engine.control().tier_writes.load(Relaxed);
        memory.fill(seed);
        have(engine, Command::Evict);
        wait_until("it is below", || {
            engine.control().tier_writes.load(Relaxed) > written && below(engine) == all
        });
    };
    go_down(1);
    let file = files_in(&directory).pop().unwrap();
    let first = read_whole(&file);
    go_down(2);
    let now = read_whole(&file);
    let flipped = |every: usize| {
        let mut bytes = now.clone();
        bytes.iter_mut().step_by(every).for_each(|byte| *byte ^= 1);
        bytes
    };
    let older: Vec<u8> = first.iter().cycle().copied().take(now.len()).collect();
    for (what, bytes) in [
        ("a bit", flipped(PAGE_SIZE)),
        ("bits", flipped(97)),
        ("a hole", vec![0; now.len()]),
        ("an older one", older),
    ] {
        file.write_all_at(&bytes, 0).unwrap();
        let (status, said) = read_in_child(engine, memory.base);
        assert!(aborted(status), "{what} was taken for it: {status:#x}, {said}");
    }
    file.set_len(0).unwrap();
    let (status, said) = read_in_child(engine, memory.base);
    assert!(aborted(status), "an end was taken for it: {status:#x}, {said}");
    file.write_all_at(&now, 0).unwrap();
    memory.check(2);
}

#[test]
fn an_older_cluster_is_not_taken_for_the_newer_one_in_its_place() {
    const PAGES: usize = 16;
    // All in one cluster: it is compressed in one moment.
    let (engine, directory) = engine_with_tier_for(3_600_000, "64M");
    let memory = Memory::new(engine, PAGES * PAGE_SIZE);
    let all = (PAGES * PAGE_SIZE) as u64;
    memory.fill(1);
    have(engine, Command::Evict);
    wait_until("the first is below", || below(engine) == all);
    let file = files_in(&directory).pop().unwrap();
    let first = read_whole(&file);
    let written = engine.control().tier_writes.load(Relaxed);
    memory.fill(2);
    have(engine, Command::Evict);
    wait_until("the second is below", || {
        engine.control().tier_writes.load(Relaxed) > written && below(engine) == all
    });
    let both = read_whole(&file);
    // The first lies wherever the second is now.
    let replayed: Vec<u8> = if both.len() > first.len() {
        first.iter().chain(first.iter().cycle()).copied().take(both.len()).collect()
    } else {
        first
    };
    file.write_all_at(&replayed, 0).unwrap();
    let pid = fork(engine);
    if pid == 0 {
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
        let is_old = (0..PAGES).any(|page| page_at(memory.base + page * PAGE_SIZE) == content(1, page));
        unsafe { libc::_exit(if is_old { 3 } else { 4 }) };
    }
    let status = wait(pid);
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
        "it was taken: {status:#x}"
    );
    file.write_all_at(&both, 0).unwrap();
    memory.check(2);
}
