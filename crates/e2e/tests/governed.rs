//! Programs under a daemon's budget: unchanged ones by `memfold run --daemon`, and one that uses the library.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::daemon::Running;
use memfold_e2e::forged::{greatest_page, page_file, run_dir};
use memfold_e2e::{wait_until, LIMIT};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// What each program keeps, MiB.
const KEPT: u64 = 24;
/// Less than three of them keep.
const BUDGET: u64 = 56 * MIB;

struct Scene {
    home: tempfile::TempDir,
    socket: PathBuf,
    metrics: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let home = scratch();
        let (socket, metrics) = (home.path().join("daemon.sock"), home.path().join("metrics.sock"));
        Scene { home, socket, metrics }
    }

    fn daemon(&self) -> Running {
        let mut command = memfold(self.home.path());
        command.args(["daemon", "--quiet", "--budget", &BUDGET.to_string(), "--socket"]).arg(&self.socket);
        let running = Running(command.arg("--metrics").arg(&self.metrics).spawn().unwrap());
        wait_until(LIMIT, "the daemon answers", || self.counters().is_some());
        running
    }

    /// A program that keeps memory, under `memfold run --daemon`. Its limit is all that has it fold anything.
    fn folding(&self, seed: u64) -> Program {
        let mut command = memfold(self.home.path());
        command.args(["run", "--start-at", "0", "--cold-age", "1h", "--max-stall", "100"]);
        command.arg(format!("--daemon={}", self.socket.display())).arg("--");
        command.arg(env!("CARGO_BIN_EXE_memfold-e2e"));
        Program::start(command, seed)
    }

    /// The same program, which registers its memory by the library.
    fn client(&self, seed: u64) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memfold-e2e"));
        command
            .env("MEMFOLD_MAX_STALL", "100")
            .env("MEMFOLD_DAEMON", &self.socket)
            .env("MEMFOLD_RUNTIME_DIR", self.home.path());
        Program::start(command, seed)
    }

    /// What the daemon answers who asks for its counters.
    fn counters(&self) -> Option<String> {
        let mut connection = UnixStream::connect(&self.metrics).ok()?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        connection.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// What `memfold stat` says of each program.
    fn stat(&self) -> Vec<serde_json::Value> {
        let output = memfold(self.home.path()).args(["stat", "--json"]).output().unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        rows.into_iter().filter(|row| row["name"] == "memfold-e2e" && !row["daemon"].is_null()).collect()
    }

    fn shares(&self) -> Vec<Option<u64>> {
        self.stat().iter().map(|row| row["share_bytes"].as_u64()).collect()
    }
}

/// The sum of a counter over all processes but the one that forged pages name, the test's own.
fn sum(text: &str, name: &str) -> u64 {
    let key = format!("memfold_{name}{{");
    let forged = format!("{key}pid=\"{}\"}}", std::process::id());
    let lines = text.lines().filter(|line| line.starts_with(&key) && !line.starts_with(&forged));
    let values = lines.map(|line| line.rsplit(' ').next());
    values.map(|value| value.unwrap().parse::<u64>().unwrap()).sum()
}

/// `memfold-e2e keep`, folded by the preloaded library or by the one that it is linked with.
struct Program {
    running: Running,
    said: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(mut command: Command, seed: u64) -> Program {
        command.args(["keep", &KEPT.to_string(), &seed.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let running = Running(child);
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Program { running, said }
    }

    /// Has it compare all that it keeps, and end.
    fn finish(mut self) {
        drop(self.running.0.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, format!("kept {}\n", KEPT * MIB / 4096));
        assert!(self.running.0.wait().unwrap().success());
    }
}

/// Control pages that say anything, for as long as they are kept: one that is whole and one that is cut short; and links where there might be
/// others.
fn forge_pages(home: &Path, socket: &Path) -> Vec<File> {
    let page = greatest_page(socket);
    let forged = [&page[..], &page[..8]].map(|bytes| {
        std::os::unix::fs::symlink("/proc/self/mem", run_dir(home).join("1")).unwrap();
        page_file(home, bytes)
    });
    forged.into()
}

#[test]
fn programs_and_a_client_come_below_one_budget_and_outlive_the_daemon() {
    let scene = Scene::new();
    let _forged = forge_pages(scene.home.path(), &scene.socket);
    let daemon = scene.daemon();
    let programs = [scene.folding(1), scene.folding(2), scene.client(3)];
    let kept_to = |counters: &str| {
        let resident = sum(counters, "resident_bytes");
        // Three, and the forged one.
        counters.contains("memfold_processes 4\n")
            // All of it was looked at: what is not resident is folded.
            && resident + sum(counters, "evicted_bytes") >= 3 * KEPT * MIB * 7 / 8
            && resident + sum(counters, "stored_bytes") <= BUDGET
    };
    // The daemon's counters say so before the programs have been told their shares, if they had folded nothing yet.
    let is_short = |share: &u64| *share < KEPT * MIB;
    wait_until(LIMIT, "the budget is kept to, by shares", || {
        kept_to(&scene.counters().unwrap()) && scene.shares().iter().flatten().any(is_short)
    });

    // Killed: the shares lapse, and everything goes on.
    drop(daemon);
    wait_until(LIMIT, "the shares lapse", || scene.shares() == [None, None, None]);

    // A daemon that comes back finds them again, and has at once what the one before had come to.
    let daemon = scene.daemon();
    wait_until(LIMIT, "the budget is kept to again", || kept_to(&scene.counters().unwrap()));
    wait_until(LIMIT, "all have a share again", || scene.shares().iter().all(Option::is_some));
    for program in programs {
        program.finish();
    }
    drop(daemon);
}

#[test]
fn without_a_daemon_the_program_runs_by_its_own_settings_and_one_line_says_so() {
    let scene = Scene::new();
    let mut command = memfold(scene.home.path());
    let daemon = format!("--daemon={}", scene.socket.display());
    command.args(["run", &daemon, "--", "/bin/true"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("no daemon listens at")).count(), 1, "{said}");
    assert!(said.contains(scene.socket.to_str().unwrap()) && said.contains("memfold daemon"), "{said}");
    let mut command = memfold(scene.home.path());
    let output =
        command.args(["run", &format!("--daemon=/{}", "x".repeat(200)), "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("107 bytes"));
}
