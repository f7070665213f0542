//! What folding takes of a CPU, against what it was given.

mod common;

use common::*;
use pager::activity::Activity;
use pager::config::Setting;
use pager::control::Command;
use pager::Phase;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

#[test]
fn folding_never_takes_more_than_its_share_of_the_time_so_far() {
    const SHARE: u64 = 50_000;
    let began = Instant::now();
    let engine = engine(20);
    let memory = Memory::new(engine, 256 * MIB).in_small_pages();
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    assert_eq!(request(engine, Command::Set, Setting::MaxCpu as u64, SHARE, ""), 0);
    memory.fill(21);
    // Far more than fits into the share of the time that this takes to see.
    wait_until("much is folded", || {
        let spent = engine.control().cpu_background_ns.load(Relaxed);
        let time = began.elapsed().as_nanos() as u64;
        // Half a second's share may have been saved up, and the last piece of work may have been over by a tenth of that. To make a
        // dictionary is one piece, however long it takes.
        let learning = engine.control().activity_ns[Activity::Learn as usize].load(Relaxed);
        let made = engine.control().dictionaries_made.load(Relaxed).max(1);
        let most = (time + 550_000_000) * SHARE / 1_000_000 + learning / made;
        assert!(spent <= most, "{spent} ns of {time}");
        evicted(engine) >= 64 * MIB as u64
    });
    memory.check(21);
}
