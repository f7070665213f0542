//! Cases that take a machine of a certain kind: short of memory, with swap, with huge pages or without, long up.
//!
//! Each makes the machine so, as root, and puts it back when it ends, also by a panic. Where that is not possible the
//! test says why and ends.

use super::{build, command, expect_nothing_lost, harsh, holds, holds_with, run_folded, run_plain, LIMIT};
use memfold_bench::zram::Zram;
use memfold_e2e::machine;
use memfold_e2e::run::{confine, program};
use memfold_pagecache::cgroup::{Group, Hierarchy};
use memfold_pager::config::Setting;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Says why a case cannot be tried.
fn skipped(case: &str, why: &str) {
    eprintln!("{case}: not tried: {why}");
}

#[test]
fn a_program_lives_where_the_oom_killer_ends_it_without_folding() {
    let case = "more_than_its_cgroup_allows";
    // The case fills 128 MiB.
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(error) => return skipped(case, &format!("{error:#}")),
    };
    let group = Group::create(&hierarchy, case).unwrap();
    group.limit(72 << 20).unwrap();
    group.never_swap().unwrap();
    let confined = |way| {
        let mut command = command(&build("limits"), case, way);
        confine(&mut command, &group);
        command
    };
    let plain = run_plain(confined("plain"), LIMIT);
    assert_eq!(plain.status.signal(), Some(libc::SIGKILL), "the limit is none: {}", plain.stderr);
    let folding = harsh();
    run_folded(confined("folded"), &folding, LIMIT).expect_success(case);
    expect_nothing_lost(&folding, case);
}

#[test]
fn memory_is_folded_while_the_system_swaps() {
    let _alone = machine::alone_with(machine::SWAP);
    match Zram::start(256 << 20, "lz4") {
        Ok(_swap) => holds("neighbours", "pages_are_in_swap"),
        Err(error) => skipped("pages_are_in_swap", &format!("{error:#}")),
    }
}

/// A setting of the system's, put back when dropped.
struct System {
    file: String,
    before: String,
}

impl System {
    /// The file's, with the value that holds now as `current` finds it in the text; `None` where it cannot be written.
    fn new(file: &str, current: impl Fn(&str) -> Option<String>) -> Option<System> {
        let before = current(fs::read_to_string(file).ok()?.trim())?;
        fs::write(file, &before).ok()?;
        Some(System { file: file.into(), before })
    }

    fn set(&self, value: &str) {
        fs::write(&self.file, value).expect("it could be written before");
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // What could be written before can be written again.
        let _ = fs::write(&self.file, &self.before);
    }
}

#[test]
fn huge_pages_may_come_always_on_advice_or_never() {
    let _alone = machine::alone_with(machine::HUGE_PAGES);
    let chosen = |all: &str| Some(all.split('[').nth(1)?.split(']').next()?.to_owned());
    let Some(setting) = System::new("/sys/kernel/mm/transparent_hugepage/enabled", chosen) else {
        return skipped("pages_are_huge", "the setting for transparent huge pages cannot be written");
    };
    for mode in ["always", "madvise", "never"] {
        setting.set(mode);
        holds("neighbours", "pages_are_huge");
        // What is not touched for a moment is not cold.
        holds_with("neighbours", "huge_pages_in_use", &harsh().set(Setting::ColdAge, "300ms"));
        holds("neighbours", "huge_pages_in_use_in_part");
        holds("neighbours", "huge_pages_asked_for");
        holds("neighbours", "huge_pages_made");
        // A limit is kept page by page.
        holds_with("neighbours", "huge_pages_asked_for", &harsh().set(Setting::ResidentLimit, "64M"));
        holds_with("neighbours", "huge_pages_made", &harsh().set(Setting::ResidentLimit, "64M"));
    }
}

#[test]
fn pages_may_be_merged_meanwhile() {
    let case = "pages_are_merged";
    let _alone = machine::alone_with(machine::MERGING);
    let number = |text: &str| text.parse::<u32>().ok().map(|_| text.to_owned());
    let settings = [("run", "1"), ("pages_to_scan", "20000"), ("sleep_millisecs", "5")];
    let set: Vec<System> = settings
        .iter()
        .map_while(|(name, value)| {
            System::new(&format!("/sys/kernel/mm/ksm/{name}"), number).inspect(|setting| setting.set(value))
        })
        .collect();
    if set.len() < settings.len() {
        return skipped(case, "the settings for merging cannot be written");
    }
    holds("neighbours", case);
}

/// The clock that ages go by may begin anywhere.
#[test]
fn a_machine_may_have_been_up_for_a_century() {
    let unshare = || {
        let mut unshare = Command::new(program("unshare", "util-linux"));
        unshare.args(["--time", "--monotonic", "3155760000", "--fork"]);
        unshare
    };
    let mut probe = unshare();
    probe.arg("true");
    if !run_plain(probe, LIMIT).status.success() {
        return skipped("handler_faults", "a time namespace cannot be made");
    }
    let mut command = unshare();
    command.arg(build("signals")).args(["handler_faults", "folded"]).current_dir(env!("CARGO_TARGET_TMPDIR"));
    let folding = harsh();
    run_folded(command, &folding, LIMIT).expect_success("handler_faults");
    expect_nothing_lost(&folding, "handler_faults");
}

#[test]
fn a_cold_age_of_five_days_evicts_nothing_today() {
    let folding = harsh().set(Setting::ColdAge, "5d");
    // Told that it is not folded, the case does not wait for evictions.
    let outcome = run_folded(command(&build("children"), "fork_in_a_fork", "plain"), &folding, LIMIT);
    outcome.expect_success("fork_in_a_fork");
    let all = memfold_e2e::run::counters(&folding);
    assert!(!all.is_empty() && all.iter().all(|c| c.pages.evicted == 0 && c.pages.lost == 0));
}

#[test]
fn a_cold_age_of_five_seconds_evicts() {
    holds_with("signals", "handler_faults", &harsh().set(Setting::ColdAge, "5s"));
}
