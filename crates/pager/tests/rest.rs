//! A program that rests. By itself in its process: while another test works, nothing there is idle.

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use std::sync::atomic::Ordering::*;

#[test]
fn an_idle_program_sleeps_by_itself() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let engine = engine_of(20, u64::MAX, &format!("disk={},after=10ms,size=1G", directory.path().display()));
    let memory = Memory::new(engine, 8 * MIB);
    memory.fill(3);
    let below = || engine.control().tier_bytes.load(Relaxed);
    wait_until("everything went down", || below() == 8 * MIB as u64);
    engine.set_setting(Setting::ColdAge, 3_600_000_000_000);
    have(engine, Command::Restore);
    wait_until("it is back", || below() == 0);
    engine.set_setting(Setting::SleepAfter, 1_000_000_000);
    wait_until("it sleeps", || engine.control().asleep.load(Relaxed) != 0 && below() == 8 * MIB as u64);
    engine.set_setting(Setting::SleepAfter, u64::MAX);
    memory.check(3);
}
