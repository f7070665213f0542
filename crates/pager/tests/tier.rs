//! The tier below memory: what goes down comes back whole, to whoever wants it, whatever happened meanwhile.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_pager::Engine;
use memfold_sys::{mem, PAGE_SIZE};
use std::sync::atomic::Ordering::*;
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;

#[test]
fn what_went_down_comes_back_in_any_order_to_any_thread() {
    let (engine, memory, _directory) = memory_below(24 * MIB, 1);
    let (pages, base) = (memory.pages, memory.base);
    let threads: Vec<_> = (0..4)
        .map(|thread: usize| {
            thread::spawn(move || {
                let memory = Memory { base, pages };
                // Each its own quarter in steps of its own, and all of them some.
                for n in 0..pages / 4 {
                    memory.check_page(1, thread * (pages / 4) + n * 37 % (pages / 4));
                    memory.check_page(1, n * 101 % pages);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    memory.check(1);
    let control = engine.control();
    assert_eq!(control.pages_lost.load(Relaxed), 0);
    assert!(control.tier_read_ns.count.load(Relaxed) > 0 && control.tier_writes.load(Relaxed) > 0);
}

#[test]
fn what_is_written_goes_down_anew_and_what_is_dropped_is_given_back() {
    let (engine, memory, _directory) = memory_below(16 * MIB, 1);
    for round in 2..5 {
        for page in (0..memory.pages).filter(|page| page % 3 != round as usize % 3) {
            unsafe {
                *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(round, page);
            }
        }
        for page in (0..memory.pages).filter(|page| page % 3 == round as usize % 3) {
            memory.check_page(if round == 2 { 1 } else { round - 1 }, page);
        }
        memory.fill(round);
        wait_until("everything went down again", || below(engine) == 16 * MIB as u64);
    }
    let taken = engine.control().tier_file_bytes.load(Relaxed);
    assert!(taken >= MIB as u64, "{taken}");
    engine
        .drop_contents(memory.base, 16 * MIB, || unsafe {
            mem::madvise(memory.base, 16 * MIB, libc::MADV_DONTNEED)
        })
        .unwrap();
    assert!((0..memory.pages).all(|page| page_at(memory.base + page * PAGE_SIZE) == [0; PAGE_SIZE / 8]));
    // One segment is being filled.
    wait_until("its files are empty", || engine.control().tier_file_bytes.load(Relaxed) <= MIB as u64);
    assert_eq!(below(engine), 0);
}

#[test]
fn everything_is_back_when_the_pager_has_stopped() {
    let (engine, memory, _directory) = memory_below(8 * MIB, 3);
    have(engine, Command::Restore);
    memory.check(3);
    wait_until("everything went down again", || below(engine) == 8 * MIB as u64);
    stop(engine);
    memory.check(3);
}

/// Has the pager end.
fn stop(engine: &'static Engine) {
    let ticket = ask(engine, Command::Stop);
    wait_until("it has stopped", || answered(engine, ticket) && engine.phase() == memfold_pager::Phase::Off);
}

#[test]
fn a_child_reads_what_its_parent_had_below_whatever_the_parent_does_with_it() {
    let (engine, memory, directory) = memory_below(12 * MIB, 5);
    let pid = fork(engine);
    if pid == 0 {
        // The parent writes all of its own anew meanwhile, and drops half.
        thread::sleep(std::time::Duration::from_millis(300));
        memory.check(5);
        let grandchild = fork(engine);
        if grandchild == 0 {
            memory.check(5);
            unsafe { libc::_exit(0) };
        }
        let ended = wait(grandchild);
        memory.fill(6);
        memory.check(6);
        unsafe { libc::_exit(if ended == 0 { 0 } else { 9 }) };
    }
    memory.fill(7);
    wait_until("the parent's went down anew", || below(engine) == 12 * MIB as u64);
    engine
        .drop_contents(memory.base, 6 * MIB, || unsafe {
            mem::madvise(memory.base, 6 * MIB, libc::MADV_DONTNEED)
        })
        .unwrap();
    memory.fill(8);
    wait_until("all of it went down again", || below(engine) == 12 * MIB as u64);
    assert_eq!(wait(pid), 0, "a child lost something");
    memory.check(8);
    // What the child needed is given back when it has ended: what is left is the parent's, less than two bytes in three of what it holds.
    memory.fill(9);
    wait_until("its last is below", || below(engine) == 12 * MIB as u64);
    wait_until("the file that the child had is gone", || {
        engine.control().tier_file_bytes.load(Relaxed) <= 10 * MIB as u64 && files_in(&directory).len() <= 2
    });
}

#[test]
fn forks_one_after_another_lose_nothing_of_what_goes_up_and_down_meanwhile() {
    let (engine, memory, _directory) = memory_below(8 * MIB, 1);
    for round in 2..14 {
        let pid = fork(engine);
        if pid == 0 {
            memory.check(round - 1);
            unsafe { libc::_exit(0) };
        }
        for page in (0..memory.pages).filter(|page| page % 2 == 0) {
            memory.check_page(round - 1, page);
        }
        memory.fill(round);
        if round % 3 == 0 {
            wait_until("everything went down", || below(engine) == 8 * MIB as u64);
        }
        assert_eq!(wait(pid), 0, "round {round}");
    }
    memory.check(13);
}

#[test]
fn a_tier_that_is_full_leaves_the_rest_in_memory() {
    let (engine, _directory) = engine_with_tier("16M");
    let memory = Memory::new(engine, 200 * MIB);
    memory.fill(2);
    let all = 200 * MIB as u64;
    wait_until("everything is evicted, and the tier is full", || {
        evicted(engine) == all && engine.control().tier_file_bytes.load(Relaxed) >= 15 * MIB as u64
    });
    wait_until("nothing more goes down", || {
        let before = below(engine);
        thread::sleep(std::time::Duration::from_millis(200));
        before == below(engine)
    });
    assert!((PAGE..all).contains(&below(engine)));
    assert!(engine.control().tier_file_bytes.load(Relaxed) <= 16 * MIB as u64);
    memory.check(2);
}

#[test]
fn what_was_kept_for_a_child_is_given_back_when_it_has_ended() {
    let (engine, memory, directory) = memory_below(24 * MIB, 4);
    let before = engine.control().tier_file_bytes.load(Relaxed);
    let pid = fork(engine);
    if pid == 0 {
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(pid), 0);
    let half = memory.pages / 2;
    engine
        .drop_contents(memory.base, half * PAGE_SIZE, || unsafe {
            mem::madvise(memory.base, half * PAGE_SIZE, libc::MADV_DONTNEED)
        })
        .unwrap();
    // The file is the one that the child had. It has what is left, and a segment that is being filled.
    wait_until("half of the file is given back", || {
        engine.control().tier_file_bytes.load(Relaxed) <= before / 2 + 2 * MIB as u64
    });
    assert_eq!(files_in(&directory).len(), 1);
    (half..memory.pages).for_each(|page| memory.check_page(4, page));
}

#[test]
fn a_program_that_sleeps_lies_below_whatever_its_age_and_wakes_when_it_wants_much() {
    // Nothing would go down by itself for an hour.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},after=1h,size=1G", directory.path().display());
    let engine = engine_of(3_600_000, u64::MAX, &tier);
    let asleep = || engine.control().asleep.load(Relaxed) != 0;
    let memory = Memory::new(engine, 64 * MIB);
    memory.fill(9);
    have(engine, Command::Sleep);
    assert!(asleep());
    assert_eq!(below(engine), 64 * MIB as u64, "all of it is below when the answer comes");
    // A few pages are housekeeping, which stays below.
    memory.check_page(9, 5);
    let wanted = [2000, 3000, 4000, 9000];
    wanted.iter().for_each(|&page| memory.check_page(9, page));
    assert!(asleep());
    have(engine, Command::Wake);
    assert!(!asleep());
    have(engine, Command::Sleep);
    assert_eq!(below(engine), 64 * MIB as u64);
    let (touches, reads) = (
        || engine.control().restore_ns.count.load(Relaxed),
        || engine.control().tier_read_ns.count.load(Relaxed),
    );
    let (touched, read) = (touches(), reads());
    have(engine, Command::Wake);
    // What was wanted comes by itself, in whole clusters.
    wait_until("what was wanted is back", || below(engine) <= 64 * MIB as u64 - 5 * 16 * PAGE);
    assert!(reads() > read && touches() == touched);
    have(engine, Command::Sleep);
    wait_until("it wakes", || {
        (0..memory.pages).step_by(7).for_each(|page| memory.check_page(9, page));
        !asleep()
    });
    memory.check(9);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

/// Has the engine use a tier, or change it. Returns the error.
fn set_tier(engine: &'static Engine, text: &str) -> u32 {
    request(engine, Command::Tier, 0, 0, text)
}

#[test]
fn a_program_that_runs_gets_a_tier_which_grows_past_what_its_first_file_was_mapped_for() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = |rest: &str| format!("disk={},after=10ms{rest}", directory.path().display());
    let engine = engine_of(20, u64::MAX, "");
    let memory = Memory::new(engine, 200 * MIB);
    let all = 200 * MIB as u64;
    memory.fill(12);
    wait_until_evicted(engine, all as usize);
    assert_eq!(set_tier(engine, "redis://a:1"), libc::ENOTSUP as u32);
    assert_eq!(set_tier(engine, "tape=/x"), libc::EINVAL as u32);
    assert_eq!(set_tier(engine, "disk=/nowhere-at-all"), libc::ENOENT as u32);
    assert_eq!(set_tier(engine, &tier(",size=16M")), 0);
    wait_until("the tier is full", || engine.control().tier_file_bytes.load(Relaxed) >= 15 * MIB as u64);
    assert!(below(engine) < all);
    assert_eq!(set_tier(engine, "disk=/var"), libc::EEXIST as u32);
    assert_eq!(set_tier(engine, &tier(",size=1G")), 0);
    wait_until("everything goes down", || below(engine) == all);
    // The child has no descriptor: it reads where the files are mapped.
    let pid = fork(engine);
    if pid == 0 {
        memory.check(12);
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(pid), 0);
    assert_eq!(set_tier(engine, &tier(",size=16M")), 0);
    memory.check(12);
    stop(engine);
    memory.check(12);
}

#[test]
fn a_tier_that_is_shared_takes_as_much_as_was_granted_and_nothing_of_a_child_before_it_is_told() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let engine = engine_of(20, u64::MAX, "");
    assert!(engine.obey_daemon("/nowhere-at-all"));
    let memory = Memory::new(engine, 100 * MIB);
    memory.fill(13);
    wait_until_evicted(engine, 100 * MIB);
    let files = || engine.control().tier_file_bytes.load(Relaxed);
    let grant = |mebibytes: u64| {
        let share = &engine.control().share;
        share.tier.set(&format!("disk={},after=10ms,size=1G", directory.path().display()));
        share.tier_bytes.store(mebibytes * MIB as u64, Relaxed);
        share.renewals.fetch_add(1, Release);
    };
    grant(4);
    wait_until("it takes its share", || files() == 4 * MIB as u64);
    let pid = fork(engine);
    if pid == 0 {
        memory.check(13);
        memory.fill(14);
        wait_until_evicted(engine, 100 * MIB);
        // Nobody has told it anything.
        let has_none = files() == 0;
        unsafe { libc::_exit(i32::from(!has_none)) };
    }
    assert_eq!(wait(pid), 0);
    assert!(files() <= 4 * MIB as u64);
    grant(9);
    wait_until("it takes more", || files() == 9 * MIB as u64);
    // Less: others need the room.
    wait_until("it gives back what is beyond its share", || {
        grant(2);
        files() <= 4 * MIB as u64
    });
    memory.check(13);
    stop(engine);
    memory.check(13);
}

/// Every third page shrinks.
fn fill_dense(memory: &Memory, seed: u64) {
    memory.fill_with(|page| mostly_dense(seed, page));
}

fn check_dense(memory: &Memory, seed: u64) {
    memory.check_with(|page| mostly_dense(seed, page));
}

fn mostly_dense(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    if page.is_multiple_of(3) {
        content(seed, page)
    } else {
        dense(seed, page)
    }
}

#[test]
fn what_does_not_shrink_goes_down_as_it_is() {
    let (engine, _directory) = engine_with_tier("1G");
    let memory = Memory::new(engine, 24 * MIB);
    for round in 1..4 {
        fill_dense(&memory, round);
        wait_until("everything went down", || below(engine) == 24 * MIB as u64);
        let pid = fork(engine);
        if pid == 0 {
            check_dense(&memory, round);
            fill_dense(&memory, round + 7);
            check_dense(&memory, round + 7);
            unsafe { libc::_exit(0) };
        }
        assert_eq!(wait(pid), 0, "a child lost something");
        check_dense(&memory, round);
    }
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn what_does_not_shrink_sleeps_below_too() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},after=1h,size=1G", directory.path().display());
    let engine = engine_of(20, u64::MAX, &tier);
    let memory = Memory::new(engine, 64 * MIB);
    fill_dense(&memory, 1);
    wait_until("what does not shrink was tried", || {
        engine.control().pages_incompressible.load(Relaxed) >= memory.pages as u64 * 2 / 3
    });
    assert_eq!(below(engine), 0, "nothing has been stored for an hour");
    have(engine, Command::Sleep);
    assert_eq!(below(engine), 64 * MIB as u64, "all of it is below when the answer comes");
    have(engine, Command::Wake);
    check_dense(&memory, 1);
}

#[test]
fn where_the_tier_is_full_what_does_not_shrink_stays_where_it_is() {
    let (engine, _directory) = engine_with_tier("16M");
    let memory = Memory::new(engine, 100 * MIB);
    fill_dense(&memory, 3);
    wait_until("the tier is full", || engine.control().tier_file_bytes.load(Relaxed) >= 15 * MIB as u64);
    let shrinks = 100 * MIB as u64 / 3;
    wait_until("what shrinks is stored", || evicted(engine) >= shrinks);
    // Of what does not, no more is stored than goes down at a time.
    assert!(evicted(engine) <= shrinks + 2 * 16 * MIB as u64 + 4 * MIB as u64, "{}", evicted(engine));
    check_dense(&memory, 3);
}

#[test]
fn a_tier_that_is_sealed_stays_so_and_nothing_is_unsealed_where_nothing_erased_may_stay() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = |rest: &str| format!("disk={},after=10ms{rest}", directory.path().display());
    let wipes = engine_of(20, u64::MAX, "");
    let memory = Memory::new(wipes, 4 * MIB);
    wipes.wipe_at_once();
    assert_eq!(set_tier(wipes, &tier(",seal=no")), libc::EPERM as u32);
    assert!(wipes.use_tier(&tier(",seal=no"), "").is_err());
    assert_eq!(set_tier(wipes, &tier("")), 0);
    memory.fill(4);
    wait_until("everything went down", || below(wipes) == 4 * MIB as u64);
    memory.check(4);
    stop(wipes);
    let engine = engine_of(20, u64::MAX, "");
    let memory = Memory::new(engine, 4 * MIB);
    assert_eq!(set_tier(engine, "redis://a:1,seal=no"), libc::EINVAL as u32);
    assert_eq!(set_tier(engine, &tier(",seal=no")), 0);
    memory.fill(5);
    wait_until("everything went down", || below(engine) == 4 * MIB as u64);
    assert_eq!(set_tier(engine, &tier("")), libc::EEXIST as u32);
    assert_eq!(set_tier(engine, &tier(",seal=no,size=1G")), 0);
    memory.check(5);
    stop(engine);
    // A daemon's word is not the user's.
    let offered = engine_of(20, u64::MAX, "");
    let share = &offered.control().share;
    assert!(offered.obey_daemon("/nowhere-at-all"));
    share.tier.set(&tier(",seal=no"));
    share.tier_bytes.store(64 * MIB as u64, Relaxed);
    share.renewals.fetch_add(1, Relaxed);
    let memory = Memory::new(offered, 4 * MIB);
    memory.fill(6);
    wait_until_evicted(offered, 4 * MIB);
    assert_eq!(offered.control().tier.read(&mut [0; 512]), "");
    share.tier.set(&tier(""));
    share.renewals.fetch_add(1, Relaxed);
    wait_until("a sealed one is taken", || below(offered) == 4 * MIB as u64);
    memory.check(6);
}
