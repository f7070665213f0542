//! Mappings that were made a moment ago, in a real engine on real memory: gone before the tables knew of them, or there to
//! stay.

// Every address here lies in a mapping that the test itself made and holds, or is being taken away from under it
// on purpose, which is what the tests are about.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::{Engine, Phase};
use memfold_sys::{mem, PAGE_SIZE};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A running engine that looks for what is cold only when it is told to.
fn patient() -> &'static Engine {
    let engine = engine(86_400_000);
    Memory::new(engine, MIB);
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    have(engine, Command::Evict);
    assert_eq!(request(engine, Command::Set, Setting::ColdAge as u64, 86_400_000_000_000, ""), 0);
    engine
}

fn unmap(engine: &'static Engine, addr: usize, len: usize) {
    engine.unmap(addr, len, || unsafe { mem::munmap(addr, len) }).unwrap();
}

fn touch(addr: usize) {
    unsafe { *(addr as *mut u64) = 1 };
}

#[test]
fn the_tables_are_told_of_few_mappings_that_come_and_go() {
    let engine = patient();
    let told = || engine.control().ranges_added.load(Relaxed);
    let before = told();
    let mut rounds = 0u64;
    while rounds < 2_000 {
        for len in [MIB, 3 * MIB, 40 * MIB] {
            let base = mem::map_anonymous(0, len, 0).unwrap();
            engine.mapped(base, len);
            touch(base);
            unmap(engine, base, len);
        }
        rounds += 1;
    }
    // One may be there at two looks of the background thread that follow each other.
    assert!(told() - before <= rounds / 4, "{} of {}", told() - before, 3 * rounds);
}

#[test]
fn all_mappings_that_stay_are_evicted_however_many_there_are() {
    let engine = engine(20);
    let all: Vec<Memory> = (0..100).map(|_| Memory::new(engine, MIB).in_small_pages()).collect();
    all.iter().enumerate().for_each(|(n, memory)| memory.fill(n as u64));
    wait_until_evicted(engine, 100 * MIB);
    all.iter().enumerate().for_each(|(n, memory)| memory.check(n as u64));
    engine.stop(&"the test is over");
}

#[test]
fn the_tables_are_told_of_a_long_mapping_only_where_it_is_in_use() {
    let engine = patient();
    let len = 256 << 30;
    let base = mem::map_anonymous(0, len, libc::MAP_NORESERVE).unwrap();
    unsafe { mem::madvise(base, len, libc::MADV_NOHUGEPAGE) }.unwrap();
    let tables = || engine.control().table_bytes.load(Relaxed);
    let before = tables();
    engine.mapped(base, len);
    // The second place is used when the first is known already, and what lies between is not.
    for (known, place) in [base, base + len / 2].into_iter().enumerate() {
        (place..place + MIB).step_by(PAGE_SIZE).for_each(touch);
        have(engine, Command::Evict);
        assert_eq!(evicted(engine), ((known + 1) * MIB) as u64);
    }
    assert!(tables() > before && tables() - before < MIB as u64, "{} bytes of tables", tables() - before);
    assert!([base, base + len / 2].iter().all(|&place| unsafe { *(place as *const u64) } == 1));
    touch(base + len / 4);
    unmap(engine, base, len);
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), 0);
    assert!(!engine.is_managed(base, PAGE_SIZE) && tables() - before < MIB as u64);
}

#[test]
fn a_part_of_a_young_mapping_can_be_unmapped_and_the_rest_is_evicted() {
    let engine = patient();
    let memory = Memory::new(engine, 8 * MIB).in_small_pages();
    memory.fill(41);
    unmap(engine, memory.base + 2 * MIB, MIB);
    assert!(engine.is_managed(memory.base, 2 * MIB) && engine.is_managed(memory.base + 3 * MIB, 5 * MIB));
    assert!(!engine.is_managed(memory.base + 2 * MIB, PAGE_SIZE));
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), 7 * MIB as u64);
    let gone = 2 * MIB / PAGE_SIZE..3 * MIB / PAGE_SIZE;
    (0..memory.pages).filter(|page| !gone.contains(page)).for_each(|page| memory.check_page(41, page));
    // All of it at once, the hole included.
    unmap(engine, memory.base, 8 * MIB);
    wait_until("nothing is evicted any more", || evicted(engine) == 0);
    assert!(!engine.is_managed(memory.base, PAGE_SIZE));
}

#[test]
fn a_young_mapping_can_be_changed_in_every_way_and_reads_as_the_kernel_has_it() {
    let engine = patient();
    let make = |seed: u64| {
        let memory = Memory::new(engine, 4 * MIB).in_small_pages();
        memory.fill(seed);
        memory
    };
    let dropped = make(42);
    engine
        .drop_contents(dropped.base, MIB, || unsafe { mem::madvise(dropped.base, MIB, libc::MADV_DONTNEED) })
        .unwrap();
    let protected = make(43);
    let readable = || unsafe { mem::mprotect(protected.base, 4 * MIB, libc::PROT_READ) };
    engine.protect(protected.base, 4 * MIB, false, readable).unwrap();
    assert!(!engine.is_managed(protected.base, PAGE_SIZE));
    let locked = make(44);
    engine.exempt(locked.base, 4 * MIB, || Ok(())).unwrap();
    let mut moved = make(45);
    let target = mem::map_anonymous(0, 4 * MIB, 0).unwrap();
    engine.mapped(target, 4 * MIB);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let call = || unsafe { mem::mremap(moved.base, 4 * MIB, 4 * MIB, flags, target) };
    moved.base = engine.remap(moved.base, 4 * MIB, 4 * MIB, Some(target), call).unwrap();
    have(engine, Command::Evict);
    // A quarter of the first, and all of the last.
    assert_eq!(evicted(engine), 7 * MIB as u64);
    let zero = [0; PAGE_SIZE / 8];
    for page in 0..dropped.pages {
        let expected = if page < MIB / PAGE_SIZE { zero } else { content(42, page) };
        assert!(page_at(dropped.base + page * PAGE_SIZE) == expected, "page {page}");
    }
    protected.check(43);
    locked.check(44);
    moved.check(45);
}

#[test]
fn a_forked_child_folds_what_was_young_at_the_fork() {
    let engine = patient();
    let old = Memory::new(engine, 4 * MIB).in_small_pages();
    old.fill(46);
    have(engine, Command::Evict);
    let young = Memory::new(engine, 4 * MIB).in_small_pages();
    young.fill(47);
    let pid = fork(engine);
    if pid == 0 {
        young.fill(48);
        wait_until("the engine runs", || engine.phase() == Phase::Running);
        have(engine, Command::Evict);
        let good = evicted(engine) == 8 * MIB as u64
            && (0..old.pages).all(|page| page_at(old.base + page * PAGE_SIZE) == content(46, page))
            && (0..young.pages).all(|page| page_at(young.base + page * PAGE_SIZE) == content(48, page));
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert_eq!(wait(pid), 0);
    old.check(46);
    young.check(47);
}

#[test]
fn a_mapping_made_where_a_young_one_was_unmapped_past_libc_is_folded_as_itself() {
    let engine = patient();
    let memory = Memory::new(engine, 8 * MIB).in_small_pages();
    memory.fill(49);
    unsafe { mem::munmap(memory.base, 8 * MIB) }.unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (base, len) = (memory.base + MIB, 2 * MIB);
    let plain = libc::PROT_READ | libc::PROT_WRITE;
    assert_eq!(unsafe { mem::mmap(base, len, plain, flags, -1, 0) }, Ok(base));
    engine.mapped(base, len);
    let new = Memory { base, pages: len / PAGE_SIZE }.in_small_pages();
    new.fill(50);
    assert!(!engine.is_managed(memory.base, PAGE_SIZE) && engine.is_managed(base, len));
    have(engine, Command::Evict);
    assert_eq!(evicted(engine), len as u64);
    new.check(50);
}

#[test]
fn threads_map_and_unmap_while_everything_is_evicted_again_and_again() {
    let engine = engine(10);
    let keep = Memory::new(engine, 4 * MIB).in_small_pages();
    keep.fill(51);
    wait_until("it is evicted", || evicted(engine) >= 4 * MIB as u64);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..400u64 {
                    let len = [MIB, 2 * MIB, 5 * MIB][(round % 3) as usize];
                    let memory = Memory::new(engine, len);
                    let seed = 1_000 * thread + round;
                    (0..memory.pages).step_by(7).for_each(|page| unsafe {
                        *((memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(seed, page)
                    });
                    if round % 5 == 0 {
                        // Old enough to be told of, and now and then to be evicted.
                        std::thread::sleep(std::time::Duration::from_millis(round % 40));
                    }
                    let half = memory.pages / 2 * PAGE_SIZE;
                    if round % 2 == 0 {
                        unmap(engine, memory.base, half);
                    }
                    let first = if round % 2 == 0 { half / PAGE_SIZE } else { 0 };
                    (0..memory.pages)
                        .step_by(7)
                        .filter(|page| *page >= first)
                        .for_each(|page| memory.check_page(seed, page));
                    unmap(engine, memory.base + first * PAGE_SIZE, len - first * PAGE_SIZE);
                }
            });
        }
    });
    keep.check(51);
    have(engine, Command::Evict);
    wait_until("only what is left is managed", || {
        engine.control().managed_bytes.load(Relaxed) == 4 * MIB as u64
    });
    engine.stop(&"the test is over");
    keep.check(51);
}

/// Maps the pages again, where they were reserved.
fn map_at(addr: usize, len: usize) {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    assert_eq!(unsafe { mem::mmap(addr, len, prot, flags, -1, 0) }, Ok(addr));
}

#[test]
fn a_note_of_what_went_past_libc_takes_nothing_from_the_mapping_that_came_after_it() {
    let engine = patient();
    let base = mem::reserve_aligned(8 * MIB, 2 * MIB).unwrap();
    map_at(base, MIB);
    engine.mapped(base, MIB);
    assert!(engine.is_managed(base, MIB));
    map_at(base + MIB, 7 * MIB);
    engine.mapped(base + MIB, 7 * MIB);
    let (begun, over) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // While the first extent is in other hands, the tables are told nothing of the note.
        scope.spawn(|| {
            let change = || {
                begun.store(1, SeqCst);
                wait_until("the test goes on", || over.load(SeqCst) != 0);
                Ok(())
            };
            engine.protect(base, MIB, true, change).unwrap();
        });
        wait_until("the extent is being changed", || begun.load(SeqCst) != 0);
        unsafe { mem::munmap(base + MIB, 7 * MIB) }.unwrap();
        // Under a limit, no mapping is young.
        assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, 1 << 40, ""), 0);
        map_at(base + 4 * MIB, 4 * MIB);
        engine.mapped(base + 4 * MIB, 4 * MIB);
        let memory = Memory { base: base + 4 * MIB, pages: 4 * MIB / PAGE_SIZE };
        memory.fill(47);
        have(engine, Command::Evict);
        assert!(evicted(engine) >= 4 * MIB as u64);
        over.store(1, SeqCst);
        wait_until("the change is over", || engine.is_managed(base, MIB));
        (0..4).for_each(|_| have(engine, Command::Evict));
        memory.check(47);
    });
    engine.stop(&"the test is over");
}

#[test]
fn what_comes_to_lie_in_a_hole_that_nobody_reported_is_registered_before_it_is_evicted() {
    let engine = patient();
    let base = mem::reserve_aligned(2 * MIB, 2 * MIB).unwrap();
    map_at(base, 2 * MIB);
    engine.mapped(base, 2 * MIB);
    // Past libc, before anything of it is registered.
    unsafe { mem::munmap(base + MIB, MIB / 2) }.unwrap();
    let around = Memory { base, pages: MIB / PAGE_SIZE };
    around.fill(51);
    have(engine, Command::Evict);
    assert!(evicted(engine) >= MIB as u64);
    // Past libc as well.
    map_at(base + MIB, MIB / 2);
    let inside = Memory { base: base + MIB, pages: MIB / 2 / PAGE_SIZE };
    inside.fill(52);
    have(engine, Command::Evict);
    assert!(evicted(engine) >= (MIB + MIB / 2) as u64);
    inside.check(52);
    around.check(51);
    engine.stop(&"the test is over");
}
