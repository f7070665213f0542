//! Blocks that a program frees while they are folded: it does not wait for them, they serve again, and those beside them keep every byte.
//!
//! The program is `c/freed.c`.

use memfold_e2e::dialogue::Dialogue;
use memfold_e2e::run::{program, run_plain};
use memfold_e2e::{memfold, scratch, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a test waits for what must come.
const LIMIT: Duration = Duration::from_secs(120);

/// The program under `memfold run`, which folds when it is told to.
struct Freer {
    program: Dialogue,
    pid: String,
    home: tempfile::TempDir,
}

impl Freer {
    fn start(options: &[&str]) -> Freer {
        let home = scratch();
        let file = home.path().join("freer");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/freed.c");
        let mut compiler = Command::new(program("cc", "gcc"));
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&file).arg(source);
        run_plain(compiler, LIMIT).expect_success("cc");
        let mut command = memfold(home.path());
        command.args(["run", "--quiet", "--start-at", "0", "--cold-age", "1h"]);
        let mut program = Dialogue::start(command.args(options).arg("--").arg(file));
        let pid = program.hear();
        let freer = Freer { program, pid, home };
        wait_until(LIMIT, "folding", || freer.stat()["mode"] == "embedded");
        freer
    }

    fn stat(&self) -> Value {
        let mut command = memfold(self.home.path());
        command.args(["stat", "--json", &self.pid]);
        let output = command.stdin(Stdio::null()).output().expect("memfold can be executed");
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        rows[0].clone()
    }

    fn count(&self, key: &str) -> u64 {
        self.stat()
            .pointer(key)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("no {key} in {:#}", self.stat()))
    }

    /// Has everything folded, and returns how many pages are.
    fn fold(&self) -> u64 {
        // When it answers for the second time, the background thread has counted what came back before the first.
        for _ in 0..2 {
            let mut command = memfold(self.home.path());
            let output = command.args(["ctl", &self.pid, "evict"]).output().expect("memfold can be executed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        self.count("/evicted_bytes") / 4096
    }
}

#[test]
fn who_frees_what_is_folded_does_not_wait_for_it_and_it_serves_again() {
    let mut freer = Freer::start(&[]);
    // Where it is freed for the first time, where blocks of earlier rounds lie dormant, and where others were put in their places.
    for round in 0..3 {
        let folded = freer.fold();
        assert!(folded > 10_000, "round {round}: {folded} pages");
        let before = freer.count("/fault_ns/count");
        freer.program.tell("free");
        freer.fold();
        let waits = freer.count("/fault_ns/count") - before;
        // Its stack, the C library's data, and the allocator's bins are folded, too.
        assert!(waits < 100, "round {round}: it waited {waits} times while it freed what was folded");
        freer.program.tell("check");
        if round == 1 {
            freer.fold();
            freer.program.tell("child");
        }
        freer.program.tell("again");
        freer.program.tell("check");
    }
    freer.fold();
    freer.program.tell("all");
    // Nothing of it is kept in the store, but for what the allocator keeps for the next call.
    wait_until(LIMIT, "what was freed to be dropped", || freer.count("/evicted_bytes") < 8 << 20);
    freer.program.tell("again");
    freer.program.tell("check");
    assert!(freer.program.end().success());
}

#[test]
fn what_is_freed_while_it_is_below_memory_is_not_read() {
    let tier = scratch();
    let option = format!("disk={},after=1s", tier.path().display());
    let mut freer = Freer::start(&["--tier", &option]);
    let folded = freer.fold();
    wait_until(LIMIT, "what is folded to go below memory", || {
        freer.fold();
        freer.count("/tier_bytes") > folded * 4096 / 10
    });
    let (before, below) = (freer.count("/tier_read_bytes"), freer.count("/tier_bytes"));
    freer.program.tell("all");
    let read = freer.count("/tier_read_bytes") - before;
    // The program's own data, and what the allocator has at hand, lie there, too.
    assert!(read < below / 20, "{read} of {below} bytes were read for what was freed");
    freer.program.tell("again");
    freer.program.tell("check");
    assert!(freer.program.end().success());
}
