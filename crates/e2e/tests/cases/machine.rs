//! Cases that take a machine of a certain kind: short of memory, with swap, with huge pages or without, long up.
//!
//! Each makes the machine so, as root, and puts it back when it ends, also by a panic. Where that is not possible the
//! test says why and ends.

use super::{build, command, expect_nothing_lost, harsh, holds, holds_with, run_folded, run_plain, LIMIT};
use memfold_bench::zram::Zram;
use memfold_e2e::run::program;
use memfold_pager::config::Setting;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says why a case cannot be tried.
fn skipped(case: &str, why: &str) {
    eprintln!("{case}: not tried: {why}");
}

/// A memory cgroup with a limit, empty and removed in the end.
struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// `None` with the reason on standard error if there can be none.
    fn new(case: &str, bytes: u64) -> Option<MemoryLimit> {
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let root = Path::new("/sys/fs/cgroup").join(if unified { "" } else { "memory" });
        let group = MemoryLimit(root.join(format!("memfold-{case}-{}", std::process::id())));
        let limits: &[(&str, u64)] = if unified {
            &[("memory.max", bytes), ("memory.swap.max", 0)]
        } else {
            &[("memory.limit_in_bytes", bytes), ("memory.swappiness", 0)]
        };
        let made = fs::create_dir(&group.0).and_then(|()| {
            limits.iter().try_for_each(|(file, value)| {
                match fs::write(group.0.join(file), value.to_string()) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound && *value == 0 => Ok(()),
                    result => result,
                }
            })
        });
        made.map_err(|error| skipped(case, &format!("{}: {error}", group.0.display()))).ok().map(|()| group)
    }

    /// Has the program run inside.
    fn confine(&self, command: &mut Command) {
        let file = std::ffi::CString::new(self.0.join("cgroup.procs").to_string_lossy().as_bytes())
            .expect("a path without a zero");
        // SAFETY: open, write and close are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                let done = fd >= 0 && libc::write(fd, c"0".as_ptr().cast(), 1) == 1;
                libc::close(fd);
                if done {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            })
        };
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // The kernel takes a moment to see that it is empty.
        for _ in 0..200 {
            if !self.0.exists() || fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_program_lives_where_the_oom_killer_ends_it_without_folding() {
    let case = "more_than_its_cgroup_allows";
    // The case fills 128 MiB.
    let Some(group) = MemoryLimit::new(case, 72 << 20) else { return };
    let confined = |way| {
        let mut command = command(&build("limits"), case, way);
        group.confine(&mut command);
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
    match Zram::start(256 << 20, "lz4") {
        Ok(_swap) => holds("neighbours", "pages_are_in_swap"),
        Err(error) => skipped("pages_are_in_swap", &format!("{error:#}")),
    }
}

/// The system's setting for huge pages, put back when dropped.
struct HugePages {
    file: &'static str,
    before: String,
}

impl HugePages {
    fn new() -> Option<HugePages> {
        let file = "/sys/kernel/mm/transparent_hugepage/enabled";
        let all = fs::read_to_string(file).ok()?;
        let before = all.split('[').nth(1)?.split(']').next()?.to_owned();
        fs::write(file, &before).ok()?;
        Some(HugePages { file, before })
    }

    fn set(&self, mode: &str) {
        fs::write(self.file, mode).expect("it could be written before");
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // What could be written before can be written again.
        let _ = fs::write(self.file, &self.before);
    }
}

#[test]
fn huge_pages_may_come_always_on_advice_or_never() {
    let Some(setting) = HugePages::new() else {
        return skipped("pages_are_huge", "the setting for transparent huge pages cannot be written");
    };
    for mode in ["always", "madvise", "never"] {
        setting.set(mode);
        holds("neighbours", "pages_are_huge");
    }
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
