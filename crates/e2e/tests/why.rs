//! `memfold ctl PID why`: a program with memory of every kind has each part under its reason, and the sum is what the kernel says.
//!
//! The program is `c/why.c`. Which part is how large stands there too.

use memfold_e2e::dialogue::Dialogue;
use memfold_e2e::run::{program, run_plain};
use memfold_e2e::{memfold, scratch, wait_for, wait_until, LIMIT};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MIB: u64 = 1 << 20;
/// Memory of the program that can be folded, as [`Folded::start`] finds it in every case.
const COLD: u64 = 24 * MIB;

/// The program under `memfold run`. What it has of the test's is closed before the launcher is waited for.
struct Folded {
    program: Dialogue,
    pid: u32,
    /// Whether it could pin memory.
    pins: bool,
    runtime: tempfile::TempDir,
}

fn built(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/why.c");
    // Not by a word that `memfold ctl` knows: another test looks for a program of such a name.
    let file = directory.join("reasons");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&file).arg(source);
    run_plain(compiler, LIMIT).expect_success("cc");
    file
}

impl Folded {
    /// Starts it; with `all`, it has all kinds of memory, else only what can be folded.
    fn start(options: &[&str], all: bool) -> Folded {
        Folded::start_by(&[], options, all)
    }

    /// The same by another program, which executes it.
    fn start_by(by: &[&str], options: &[&str], all: bool) -> Folded {
        let runtime = scratch();
        let file = built(runtime.path());
        let mut command = memfold(runtime.path());
        command
            .args(["run", "--quiet", "--summary"])
            .arg(runtime.path().join("summary"))
            .args(options)
            .arg("--")
            .args(by)
            .arg(file);
        if all {
            command.arg(runtime.path().join("mapped"));
        }
        let mut program = Dialogue::start(&mut command);
        let ready = program.hear();
        let (pid, pinned) = ready.split_once(' ').unwrap_or((&ready, ""));
        let (pid, pins) = (pid.parse().expect("its number"), pinned == "pinned");
        Folded { program, pid, pins, runtime }
    }

    fn ctl(&self, words: &[&str]) -> Output {
        let mut command = memfold(self.runtime.path());
        command.arg("ctl").arg(self.pid.to_string()).args(words);
        command.output().expect("memfold can be executed")
    }

    fn done(&self, words: &[&str]) -> Vec<u8> {
        let output = self.ctl(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Resident bytes as the kernel counts them.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
        line.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    }

    /// What it is told, once its pager runs; the sum is what the kernel says, unless memory came and went meanwhile.
    fn why(&self) -> Result<Value, String> {
        let before = self.resident();
        let output = self.ctl(&["why", "--json"]);
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(error.contains("is not folded yet"), "{error}");
            return Err(error);
        }
        let why: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let after = self.resident();
        let sum = why["sum_bytes"].as_u64().expect("a number");
        let reasons = why["reasons"].as_object().expect("an object").values();
        assert_eq!(reasons.map(|bytes| bytes.as_u64().expect("a number")).sum::<u64>(), sum);
        // While pages are folded or come back, it is between the two.
        let (least, most) = (before.min(after) * 98 / 100, before.max(after) * 102 / 100);
        match (least..=most).contains(&sum) {
            true => Ok(why),
            false => Err(format!("{sum} of {before} to {after}: {why:#}")),
        }
    }

    /// Waits until the parts are as large as they should be; what was told then.
    fn wait_for(&self, parts: &[(&str, std::ops::Range<u64>)]) -> Value {
        wait_for(LIMIT, || {
            let why = self.why()?;
            let of = |name: &str| why["reasons"][name].as_u64().unwrap_or_else(|| panic!("no reason {name}"));
            let wrong: Vec<_> = parts.iter().filter(|(name, range)| !range.contains(&of(name))).collect();
            match wrong.is_empty() {
                true => Ok(why),
                false => Err(format!("{wrong:?} in {why:#}")),
            }
        })
    }

    /// Ends the program; the summary.
    fn end(self) -> Value {
        assert!(self.program.end().success());
        let text = fs::read(self.runtime.path().join("summary")).expect("a summary");
        serde_json::from_slice(&text).expect("JSON")
    }
}

/// About so many MiB: somewhat less may have another reason for the moment, and libraries have some of their own.
fn about(mib: u64) -> std::ops::Range<u64> {
    mib * MIB * 95 / 100..(mib + 1) * MIB
}

const FREELY: [&str; 6] = ["--cold-age", "2s", "--max-cpu", "100", "--max-stall", "100"];

#[test]
fn every_part_of_a_program_has_its_reason_and_the_sum_is_what_the_kernel_says() {
    let mut folded = Folded::start(&FREELY, true);
    let why = folded.wait_for(&[
        ("shared_by_fork", about(8)),
        ("incompressible", about(12)),
        ("written", about(10)),
        ("locked", about(5)),
        ("excluded", about(4)),
        ("shared_memory", about(5)),
        ("unknown", about(3)),
        ("small", about(3)),
        ("stack", about(5)),
        ("file", 16 * MIB..40 * MIB),
        ("memfold", 1..16 * MIB),
        ("pinned", if folded.pins { about(2) } else { 0..1 }),
        ("waiting_for_cpu", 0..1),
        ("stall_budget", 0..1),
        ("policy", 0..1),
        // Nor is it on its way any more.
        ("set_aside", 0..MIB),
    ]);
    assert!(why["folded_bytes"].as_u64() > Some(COLD * 9 / 10), "{why:#}");
    let table = String::from_utf8(folded.done(&["why"])).expect("text");
    for line in ["incompressible", "not managed: locked (mlock)", "sum", "resident, as the kernel counts it"]
    {
        assert!(table.lines().any(|found| found.starts_with(line)), "no line {line}:\n{table}");
    }
    let stat = memfold(folded.runtime.path()).args(["stat", "--json", &folded.pid.to_string()]).output();
    let stat: Value = serde_json::from_slice(&stat.expect("memfold can be executed").stdout).expect("JSON");
    assert!(about(5).contains(&stat[0]["why"]["reasons"]["locked"].as_u64().expect("a number")), "{stat:#}");
    folded.program.tell("unlock");
    folded.wait_for(&[("locked", 0..1), ("excluded", about(9))]);
    let summary = folded.end();
    for part in [&summary["why"], &summary["processes"][0]["why"]] {
        assert!(
            about(12).contains(&part["reasons"]["incompressible"].as_u64().expect("a number")),
            "{part:#}"
        );
        assert!(part["sum_bytes"].as_u64() > Some(60 * MIB), "{part:#}");
    }
}

#[test]
fn cold_memory_waits_for_the_budget_that_there_is_none_of() {
    for (option, reason) in [("--max-cpu", "waiting_for_cpu"), ("--max-stall", "stall_budget")] {
        let free = if option == "--max-cpu" { "--max-stall" } else { "--max-cpu" };
        let folded = Folded::start(&["--cold-age", "1s", option, "0.001", free, "100"], false);
        folded.wait_for(&[(reason, COLD * 9 / 10..COLD * 11 / 10)]);
    }
}

#[test]
fn cold_memory_waits_for_a_place_where_address_space_is_short() {
    // A sixteenth of it has four extents.
    let by = ["sh", "-c", "ulimit -v 180000; exec \"$0\" \"$@\""];
    let folded =
        Folded::start_by(&by, &["--cold-age", "4s", "--max-cpu", "100", "--max-stall", "100"], false);
    folded.wait_for(&[("waiting_for_room", 8 * MIB..COLD), ("waiting_for_cpu", 0..1)]);
}

#[test]
fn what_is_touched_while_it_is_set_aside_is_hot() {
    let mut folded = Folded::start(&FREELY, false);
    folded.program.tell("use");
    folded.wait_for(&[("hot", COLD * 7 / 10..COLD * 11 / 10), ("came_back_soon", 0..COLD / 10)]);
}

#[test]
fn what_is_young_paused_or_came_back_says_so() {
    let mut folded = Folded::start(&["--cold-age", "1h", "--max-stall", "100", "--max-cpu", "100"], false);
    folded.wait_for(&[("young", COLD * 9 / 10..COLD * 11 / 10)]);
    folded.done(&["pause"]);
    folded.wait_for(&[("paused", COLD * 9 / 10..COLD * 11 / 10), ("young", 0..1)]);
    folded.done(&["resume"]);
    folded.done(&["evict"]);
    let why = folded.wait_for(&[("young", 0..COLD / 10), ("paused", 0..1)]);
    assert!(why["folded_bytes"].as_u64() > Some(COLD * 9 / 10), "{why:#}");
    folded.program.tell("read");
    // What the pager has brought back ahead of a touch nobody has asked for.
    folded.wait_for(&[("came_back_soon", COLD * 7 / 10..COLD * 11 / 10)]);
}

#[test]
fn a_process_that_cannot_tell_is_an_error_that_says_why() {
    let runtime = scratch();
    let ctl = |pid: u32| {
        let output = memfold(runtime.path()).args(["ctl", &pid.to_string(), "why"]).output();
        let output = output.expect("memfold can be executed");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(ctl(4_194_303).contains("there is no process 4194303"));
    assert!(ctl(std::process::id()).contains("was not started by `memfold run`"));
    let mut folded = Folded::start(&FREELY, false);
    folded.wait_for(&[]);
    let pid = folded.pid.to_string();
    // As an older memfold would have left it.
    let page = || {
        let runs = fs::read_dir(folded.runtime.path()).expect("our own").flatten();
        runs.map(|run| run.path().join(&pid)).find(|page| page.exists()).expect("its page")
    };
    let page = page();
    let tell = |signal: i32| {
        // SAFETY: the process is one of ours, and runs until its input ends.
        unsafe { libc::kill(folded.pid as i32, signal) };
    };
    // The process shows its own again and again, as long as it runs.
    tell(libc::SIGSTOP);
    wait_until(LIMIT, "another version", || {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&page).expect("our own");
        file.write_all_at(&1u32.to_ne_bytes(), 8).expect("our own");
        let output = folded.ctl(&["why"]);
        String::from_utf8_lossy(&output.stderr).contains("a control page of layout 1")
    });
    tell(libc::SIGCONT);
    folded.program.tell("read");
}
