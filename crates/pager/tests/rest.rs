//! A program that rests. By itself in its process: while another test works, nothing there is idle.

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use std::sync::atomic::Ordering::*;

#[test]
fn an_idle_program_sleeps_by_itself() {
    let (engine, memory, _directory) = memory_below(8 * MIB, 3);
    engine.set_setting(Setting::ColdAge, 3_600_000_000_000);
    have(engine, Command::Restore);
    wait_until("it is back", || below(engine) == 0);
    engine.set_setting(Setting::SleepAfter, 1_000_000_000);
    wait_until("it sleeps", || engine.control().asleep.load(Relaxed) != 0 && below(engine) == 8 * MIB as u64);
    engine.set_setting(Setting::SleepAfter, u64::MAX);
    memory.check(3);
}
