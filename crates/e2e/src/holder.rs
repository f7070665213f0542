//! A program of `c/` under `memfold run`, which holds memory, does what it is told, and says first which process it is.

use crate::command_line::{memfold, scratch};
use crate::dialogue::Dialogue;
use crate::run::{program, run_plain};
use crate::{wait_until, LIMIT};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program.
#[derive(Debug)]
pub struct Holder {
    /// It, to be told.
    pub program: Dialogue,
    /// Its number.
    pub pid: String,
    /// Where it lies, and where it is looked for.
    pub home: tempfile::TempDir,
}

impl Holder {
    /// Builds it from a source in `c/`, with `flags` for the compiler, and starts it with `options` of `memfold run`.
    ///
    /// # Panics
    /// If it cannot be built or started, or is not folded.
    pub fn start(source: &str, flags: &[&str], options: &[&str]) -> Holder {
        let home = scratch();
        let file = home.path().join("holder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source);
        let mut compiler = Command::new(program("cc", "gcc"));
        compiler.args(["-Wall", "-Wextra", "-Werror"]).args(flags).arg("-o").arg(&file).arg(source);
        run_plain(compiler, LIMIT).expect_success("cc");
        let mut command = memfold(home.path());
        command.args(["run", "--quiet", "--start-at", "0"]).args(options).arg("--").arg(file);
        let mut program = Dialogue::start(&mut command);
        let pid = program.hear();
        let holder = Holder { program, pid, home };
        wait_until(LIMIT, "folding", || holder.stat()["mode"] == "embedded");
        holder
    }

    /// What a command of memfold's does and says for the program.
    ///
    /// # Panics
    /// If it cannot be executed.
    pub fn memfold(&self, command: &str, words: &[&str]) -> Output {
        let mut asked = memfold(self.home.path());
        asked.current_dir(self.home.path()).arg(command).arg(&self.pid).args(words);
        asked.stdin(Stdio::null()).output().expect("memfold can be executed")
    }

    /// What it says, where it has to succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn done(&self, command: &str, words: &[&str]) -> Vec<u8> {
        let output = self.memfold(command, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "memfold {command} {words:?}: {said}");
        output.stdout
    }

    /// What `memfold stat` says of it; null where there is nothing.
    ///
    /// # Panics
    /// If memfold cannot be executed.
    pub fn stat(&self) -> Value {
        let rows: Value =
            serde_json::from_slice(&self.memfold("stat", &["--json"]).stdout).unwrap_or_default();
        rows[0].clone()
    }

    /// Ends it.
    ///
    /// # Panics
    /// If it does not succeed.
    pub fn end(self) {
        assert!(self.program.end().success());
    }
}
