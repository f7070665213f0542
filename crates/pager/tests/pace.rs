//! What folding takes of a CPU, against what it was given.

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::Phase;
use std::cell::Cell;
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
    let (before, longest) = (Cell::new(0), Cell::new(0));
    wait_until("much is folded", || {
        let spent = engine.control().cpu_background_ns.load(Relaxed);
        let time = began.elapsed().as_nanos() as u64;
        // Half a second's share may have been saved up, and the last piece of work may have been longer than what was left: none is longer
        // than what came between two looks.
        longest.set(longest.get().max(spent - before.replace(spent)));
        let most = (time + 500_000_000) * SHARE / 1_000_000 + longest.get();
        assert!(spent <= most, "{spent} ns of {time}");
        evicted(engine) >= 64 * MIB as u64
    });
    memory.check(21);
}
