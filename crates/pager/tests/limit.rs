//! A limit on resident memory holds while the program goes on touching more, because the program waits for room.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::{Engine, Phase};
use memfold_sys::{mem, Errno, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::thread;

const DAY: u64 = 86_400_000;

/// Reads that count again and again, until it is asked for the highest.
struct Watch {
    peak: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    fn begin() -> Watch {
        let (peak, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (peak, over) = (peak.clone(), over.clone());
            move || {
                while !over.load(SeqCst) {
                    peak.fetch_max(anonymous(), SeqCst);
                }
            }
        });
        Watch { peak, over, thread }
    }

    fn end(self) -> u64 {
        self.over.store(true, SeqCst);
        self.thread.join().unwrap();
        self.peak.load(SeqCst)
    }
}

/// What a page holds here: a sixteenth of what the other tests have pages hold, since a limit that is below what the
/// compressed pages take cannot be kept.
fn thin(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    let mut words = content(seed, page);
    words[32..].fill(seed ^ page as u64);
    words
}

/// Memory with such contents.
struct Thin(Memory);

impl Thin {
    fn new(engine: &'static Engine, len: usize) -> Thin {
        Thin(Memory::new(engine, len))
    }

    fn pages(&self) -> usize {
        self.0.pages
    }

    fn fill(&self, seed: u64) {
        self.0.fill_with(|page| thin(seed, page));
    }

    fn check_page(&self, seed: u64, page: usize) {
        assert!(page_at(self.0.base + page * PAGE_SIZE) == thin(seed, page), "page {page} changed");
    }

    fn check(&self, seed: u64) {
        (0..self.0.pages).for_each(|page| self.check_page(seed, page));
    }
}

/// An engine whose process may grow by so much from here, while the guard lives.
fn limited(room: u64) -> (&'static Engine, u64, Unlimited) {
    limited_above(room, "")
}

/// The same with a tier below memory, if one is named.
fn limited_above(room: u64, tier: &str) -> (&'static Engine, u64, Unlimited) {
    take_turn();
    let limit = anonymous() + room;
    let engine = engine_of(DAY, limit, tier);
    (engine, limit, Unlimited(engine))
}

/// Takes the limit away, of which the next test's process would be full.
struct Unlimited(&'static Engine);

impl Drop for Unlimited {
    fn drop(&mut self) {
        if self.0.phase() == Phase::Running {
            request(self.0, Command::Set, Setting::ResidentLimit as u64, u64::MAX, "");
        }
    }
}

fn assert_kept(peak: u64, limit: u64) {
    assert!(peak <= limit + limit / 20, "{} KiB of {} KiB", peak >> 10, limit >> 10);
}

#[test]
fn a_program_that_fills_four_times_the_limit_waits_and_stays_below_it() {
    let (engine, limit, _guard) = limited(24 * MIB as u64);
    let watch = Watch::begin();
    let memory = Thin::new(engine, 96 * MIB);
    memory.fill(31);
    memory.check(31);
    assert_kept(watch.end(), limit);
    let control = engine.control();
    // Where others have the CPUs, so much is evicted meanwhile that there may be room each time.
    wait_until("the program waits for room", || {
        memory.check(31);
        control.limit_waits.load(Relaxed) > 0 && control.limit_wait_ns.load(Relaxed) > 0
    });
    assert_eq!(control.pages_lost.load(Relaxed), 0);
}

#[test]
fn threads_that_touch_at_random_wait_for_room_and_none_for_ever() {
    let (engine, limit, _guard) = limited(24 * MIB as u64);
    let memory = Arc::new(Thin::new(engine, 64 * MIB));
    memory.fill(32);
    let watch = Watch::begin();
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut state = number + 1;
                for _ in 0..4_000 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    memory.check_page(32, (state >> 33) as usize % memory.pages());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_kept(watch.end(), limit);
}

#[test]
fn a_limit_that_is_set_while_the_program_runs_holds_from_then_on_and_ends_when_it_is_taken_away() {
    let engine = engine(DAY);
    let before = anonymous();
    let memory = Thin::new(engine, 64 * MIB);
    memory.fill(33);
    let limit = before + 24 * MIB as u64;
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, limit, ""), 0);
    wait_until("it is down to the limit", || anonymous() <= limit);
    let watch = Watch::begin();
    memory.check(33);
    let more = Thin::new(engine, 32 * MIB);
    more.fill(34);
    assert_kept(watch.end(), limit);
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, u64::MAX, ""), 0);
    memory.check(33);
    more.check(34);
    assert!(anonymous() > limit);
}

#[test]
fn what_is_asked_back_comes_as_far_as_there_is_room() {
    let (engine, limit, _guard) = limited(24 * MIB as u64);
    let memory = Thin::new(engine, 64 * MIB);
    memory.fill(37);
    // Everything first, so that there is room for some of it.
    have(engine, Command::Evict);
    let watch = Watch::begin();
    have(engine, Command::Restore);
    assert_kept(watch.end(), limit);
    assert!(engine.control().pages_restored.load(Relaxed) >= (8 * MIB / PAGE_SIZE) as u64);
    memory.check(37);
}

#[test]
fn a_program_of_which_nothing_can_be_compressed_is_let_through() {
    let (engine, _, _guard) = limited(8 * MIB as u64);
    let memory = Memory::new(engine, 24 * MIB);
    memory.fill_with(|page| dense(1, page));
    assert!(engine.control().limit_misses.load(Relaxed) > 0);
}

#[test]
fn a_limit_that_is_a_part_of_what_cannot_be_evicted_does_not_stop_the_program_at_every_few_pages() {
    let engine = engine(DAY);
    let (memory, more) = (Memory::new(engine, 24 * MIB), Thin::new(engine, 32 * MIB));
    memory.fill_with(|page| dense(1, page));
    assert_eq!(request(engine, Command::Set, Setting::ResidentLimit as u64, MIB as u64, ""), 0);
    for round in 0..2 {
        more.fill(38 + round);
        more.check(38 + round);
    }
    memory.check_with(|page| dense(1, page));
    let waits = engine.control().limit_waits.load(Relaxed);
    assert!((1..1000).contains(&waits), "{waits}");
}

#[test]
fn with_a_tier_a_limit_is_kept_that_compressed_pages_and_such_as_do_not_shrink_exceed() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},after=1h", directory.path().display());
    let (engine, limit, _guard) = limited_above(16 * MIB as u64, &tier);
    let watch = Watch::begin();
    let memory = Memory::new(engine, 120 * MIB);
    let words = |page: usize| if page.is_multiple_of(3) { dense(36, page) } else { content(36, page) };
    memory.fill_with(words);
    memory.check_with(words);
    assert_kept(watch.end(), limit);
    let control = engine.control();
    assert_eq!((control.limit_misses.load(Relaxed), control.pages_lost.load(Relaxed)), (0, 0));
    assert!(control.tier_bytes.load(Relaxed) >= 60 * MIB as u64);
}

#[test]
fn memory_is_locked_unmapped_and_forked_while_threads_wait_for_room() {
    let (engine, _, _guard) = limited(16 * MIB as u64);
    let memory = Arc::new(Thin::new(engine, 48 * MIB));
    memory.fill(35);
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|number| {
            let (memory, over) = (memory.clone(), over.clone());
            thread::spawn(move || {
                let mut page = number * 997;
                while !over.load(SeqCst) {
                    page = (page + 7_919) % memory.pages();
                    memory.check_page(35, page);
                }
            })
        })
        .collect();
    for round in 0..6 {
        let other = Thin::new(engine, 4 * MIB);
        other.fill(36 + round);
        let locked = || match unsafe { libc::mlock(other.0.base as *const _, MIB) } {
            0 => Ok(()),
            _ => Err(Errno::ENOMEM),
        };
        engine.exempt(other.0.base, MIB, locked).unwrap();
        other.check(36 + round);
        let pid = fork(engine);
        if pid == 0 {
            other.check(36 + round);
            unsafe { libc::_exit(0) };
        }
        assert_eq!(wait(pid), 0);
        engine.unmap(other.0.base, 4 * MIB, || unsafe { mem::munmap(other.0.base, 4 * MIB) }).unwrap();
    }
    over.store(true, SeqCst);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn who_waits_goes_on_when_folding_is_paused_and_when_the_pager_stops() {
    for command in [Command::Pause, Command::Stop] {
        let (engine, _, _guard) = limited(8 * MIB as u64);
        let memory = Arc::new(Thin::new(engine, 48 * MIB));
        let over = Arc::new(AtomicBool::new(false));
        let writer = thread::spawn({
            let (memory, over) = (memory.clone(), over.clone());
            move || {
                while !over.load(SeqCst) {
                    memory.fill(37);
                }
            }
        });
        wait_until("somebody waits", || engine.control().limit_waits.load(Relaxed) > 0);
        let _ = ask(engine, command);
        over.store(true, SeqCst);
        writer.join().unwrap();
        memory.check(37);
        wait_until("it is not limited", || !matches!(engine.phase(), Phase::Stopping));
    }
}
