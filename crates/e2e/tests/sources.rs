//! `--source`: which access source a program is folded by, as its user is told.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::{wait_until, LIMIT};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What a program keeps, MiB.
const KEPT: u64 = 24;

/// `memfold-e2e keep` under `memfold run`; it does not outlive the test.
struct Program {
    launcher: Child,
    said: BufReader<ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Program {
    fn start(home: &Path, options: &[&str]) -> Program {
        let mut command = memfold(home);
        command.args(["run", "--start-at", "0", "--cold-age", "200ms", "--max-stall", "100", "--summary"]);
        command.arg(home.join("summary")).args(options).arg("--").arg(env!("CARGO_BIN_EXE_memfold-e2e"));
        command.args(["keep", &KEPT.to_string(), "7"]);
        let mut launcher =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut program = Program { said: BufReader::new(launcher.stdout.take().unwrap()), launcher };
        assert_eq!(program.line(), "ready\n");
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// What `memfold stat` says of it; null while it is not folded.
    fn stat(&self, home: &Path) -> Value {
        let output = memfold(home).args(["stat", "--json"]).output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        // Root is shown those of other tests too.
        rows.into_iter().find(|row| row["parent_pid"] == self.launcher.id()).unwrap_or_default()
    }

    /// Waits until it is folded.
    fn evicts(&self, home: &Path) {
        wait_until(LIMIT, "it is folded", || self.stat(home)["pages"]["evicted"].as_u64() > Some(1000));
    }

    /// Has it compare all that it keeps, and end. Returns what was said on standard error.
    fn finish(mut self) -> String {
        drop(self.launcher.stdin.take());
        assert_eq!(self.line(), format!("kept {}\n", KEPT * 256));
        assert!(self.launcher.wait().unwrap().success());
        let mut said = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

/// Waits until the program goes by what it was told to go by, or says why not for good.
fn settled(home: &Path, program: &Program) -> Value {
    let mut source = Value::Null;
    wait_until(LIMIT, "the source is settled", || {
        source = program.stat(home)["source"].clone();
        let why = source["why_not"].as_str();
        !source.is_null()
            && ((source["asked"] == "auto" || source["in_use"] == source["asked"])
                || why.is_some_and(|why| why != "no report yet"))
    });
    source
}

#[test]
fn a_source_that_is_there_is_asked_and_one_that_is_not_says_why_in_one_line() {
    for name in ["writes", "probe", "damon-vaddr", "damon-paddr", "idle"] {
        let home = scratch();
        let program = Program::start(home.path(), &["--source", name]);
        let source = settled(home.path(), &program);
        assert_eq!(source["asked"], name);
        program.evicts(home.path());
        let said = program.finish();
        let lines: Vec<&str> =
            said.lines().filter(|line| line.contains(&format!("source {name}:"))).collect();
        let summary: Value = serde_json::from_slice(&fs::read(home.path().join("summary")).unwrap()).unwrap();
        assert_eq!(summary["source"]["asked"], name);
        assert_eq!(summary["processes"][0]["source"]["asked"], name);
        match source["why_not"].as_str() {
            None => assert_eq!(lines, [""; 0], "{name}"),
            // What the kernel has, and whether somebody uses it, is the machine's affair; that it is told is ours.
            Some(why) => {
                assert!(!["writes", "probe"].contains(&name), "{why}");
                assert_eq!((source["in_use"].as_str(), lines.len()), (Some("probe"), 1), "{said}");
                assert!(lines[0].contains(why), "{said}");
                assert!(said.contains(&format!("source probe, not {name}: {why}")), "{said}");
            }
        }
        assert_eq!(summary["pages"]["lost"], 0);
    }
}

#[test]
fn the_source_is_changed_while_a_program_runs() {
    let home = scratch();
    let program = Program::start(home.path(), &[]);
    assert_eq!(settled(home.path(), &program)["in_use"], "probe");
    // Its page is there before its pager is, which does as it is told.
    wait_until(LIMIT, "folding", || program.stat(home.path())["mode"] == "embedded");
    let pid = program.stat(home.path())["pid"].to_string();
    let ctl = |args: &[&str]| {
        let output = memfold(home.path()).args(["ctl", &pid]).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    };
    assert!(ctl(&["set", "source", "writes"]).stderr.is_empty());
    let shown: Value = serde_json::from_slice(&ctl(&["get", "--json"]).stdout).unwrap();
    assert_eq!((&shown["source"], &shown["source_in_use"]["in_use"]), (&"writes".into(), &"writes".into()));
    // Either it is observed from now on, or a line says why not.
    let said = String::from_utf8(ctl(&["set", "source", "idle"]).stderr).unwrap();
    let source = settled(home.path(), &program);
    match source["why_not"].as_str() {
        None => assert_eq!(said, ""),
        Some(why) => assert_eq!(said, format!("memfold: source probe, not idle: {why}\n")),
    }
    let refused = memfold(home.path()).args(["ctl", &pid, "set", "source", "damon"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("damon-paddr"));
    program.evicts(home.path());
    program.finish();
}

/// A daemon that does not outlive the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that were started with this word in their arguments.
fn processes_with(word: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|&byte| byte == 0).any(|part| part == word.as_bytes())).count()
}

#[test]
fn programs_of_a_daemon_go_by_its_source_unless_they_chose_their_own() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let home = scratch();
        let socket = home.path().join("daemon.sock");
        let path = socket.to_str().unwrap();
        let mut daemon: Command = memfold(home.path());
        daemon.args(["daemon", "--quiet", "--source", "writes", "--socket", path]);
        let mut daemon = Daemon(daemon.spawn().unwrap());
        wait_until(LIMIT, "it listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let option = format!("--daemon={path}");
        let other = Program::start(home.path(), &[&option]);
        let own = Program::start(home.path(), &[&option, "--source", "probe"]);
        wait_until(LIMIT, "one goes by the daemon's", || {
            other.stat(home.path())["source"]["in_use"] == "writes"
        });
        let source = own.stat(home.path())["source"].clone();
        assert_eq!((&source["asked"], &source["in_use"]), (&"probe".into(), &"probe".into()));
        assert_eq!(processes_with(path), 2, "the daemon, and who observes");
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(daemon.0.id() as i32, signal) };
        daemon.0.wait().unwrap();
        wait_until(LIMIT, "nobody observes any more", || processes_with(path) == 0);
        other.evicts(home.path());
        other.finish();
        own.finish();
    }
}

#[test]
fn who_is_observed_by_nobody_goes_by_the_usual_source_and_one_line_says_so() {
    let home = scratch();
    // Under the budget of a daemon it is the daemon who observes, and there is none.
    let option = format!("--daemon={}", home.path().join("daemon.sock").display());
    let program = Program::start(home.path(), &[&option, "--source", "damon-paddr"]);
    program.evicts(home.path());
    let source = settled(home.path(), &program);
    assert_eq!(source["why_not"], "nobody outside of the process reports what it touches");
    let said = program.finish();
    assert_eq!(said.matches("nobody reports what this program touches").count(), 1, "{said}");
}
