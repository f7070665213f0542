//! A real program at work: the same piece of shell, plain and folded, and its line of the table in
//! `docs/compatibility.md`.
//!
//! What it is not: a list of programs; those are in `tests/`. The shell, and what it makes the input and compares the
//! output with, run as without memfold: only what the script starts behind the variable `FOLD` is folded, with the
//! children that it starts, so that every eviction counted is one of the program's that the row names.
//!
//! Invariants: a row that printed nothing to compare fails, and so does a checked one in which nothing was evicted.

use crate::run::{self, program};
use crate::LIMIT;
use memfold_bench::launch::{plain, Folding};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The user and group `nobody`: 65534, the kernel's overflow id.
const NOBODY: u32 = 65_534;

/// One program at work.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    program: &'static str,
    package: &'static str,
    work: &'static str,
    script: &'static str,
    repeatable: bool,
    never_root: bool,
}

impl Row {
    /// A program as `run::program` finds it, the Debian package that has it, and what it does, for the table.
    pub const fn new(program: &'static str, package: &'static str, work: &'static str) -> Row {
        Row { program, package, work, script: "true", repeatable: true, never_root: false }
    }

    /// The work itself, run by `sh -eu` in an empty folder. `$FOLD` before a command folds it, `$PROGRAMS` is the
    /// folder `programs` of this crate, `$SCALE` how often as much to do as in the usual tests.
    pub const fn script(self, script: &'static str) -> Row {
        Row { script, ..self }
    }

    /// What it prints does not follow from its input alone, and only its exit code counts.
    pub const fn any_output(self) -> Row {
        Row { repeatable: false, ..self }
    }

    /// It refuses to run as root, and runs as `nobody` where the tests are root's.
    pub const fn never_root(self) -> Row {
        Row { never_root: true, ..self }
    }

    /// [`Row::compare`], and makes sure that pages were evicted.
    ///
    /// # Panics
    /// If nothing was, and as [`Row::compare`].
    pub fn check(&self) {
        let folding = self.compare();
        run::expect_evictions(&folding, self.program);
        let result = if self.repeatable { "the same output" } else { "exit code 0" };
        report(&folding, self.program, self.work, result);
    }

    /// Runs it plainly, then folded, and compares output and exit code. The control pages stay with what is returned.
    ///
    /// # Panics
    /// If they differ, or if the program is not installed.
    pub fn compare(&self) -> Folding {
        program(self.program, self.package);
        let (expected, _) = self.run(None);
        let place = self.never_root.then(library_for_all);
        let library =
            place.as_ref().map_or_else(crate::preload_library, |dir| dir.path().join("libmemfold.so"));
        let folding = run::harsh_with(&library);
        self.give(folding.control_dir());
        let (found, stderr) = self.run(Some(&folding));
        if self.repeatable {
            assert!(!expected.is_empty(), "{} printed nothing, so nothing was compared", self.program);
            assert_eq!(found, expected, "{} says something else\n{stderr}", self.program);
        }
        folding
    }

    /// What it printed.
    fn run(&self, folding: Option<&Folding>) -> (String, String) {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        self.give(home.path());
        let mut command = Command::new("/bin/sh");
        plain(&mut command);
        command.args(["-eu", "-c", self.script]).current_dir(home.path());
        command.env("LC_ALL", "C").env("TZ", "UTC");
        command.env("PROGRAMS", concat!(env!("CARGO_MANIFEST_DIR"), "/programs"));
        command.env("SCALE", std::env::var_os("SCALE").unwrap_or_else(|| "1".into()));
        command.env("FOLD", folding.map_or_else(String::new, prefix));
        // Open until the command has ended: it inherits the descriptor.
        let device = (self.gives_up_root() && folding.is_some()).then(|| {
            File::options()
                .read(true)
                .write(true)
                .open("/dev/userfaultfd")
                .expect("root opens /dev/userfaultfd")
        });
        if let Some(device) = &device {
            run::inherit(&mut command, device);
        }
        if self.gives_up_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let outcome = run::finish(command, LIMIT);
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let way = if folding.is_some() { "folded" } else { "plain" };
        assert!(
            outcome.status.success(),
            "{}, {way}: {}\n{said}\n{}",
            self.program,
            outcome.status,
            outcome.stderr
        );
        (said, outcome.stderr)
    }

    fn gives_up_root(&self) -> bool {
        // SAFETY: geteuid always succeeds.
        self.never_root && unsafe { libc::geteuid() == 0 }
    }

    /// Makes a directory the program's.
    fn give(&self, directory: &Path) {
        if self.gives_up_root() {
            chown(directory, Some(NOBODY), Some(NOBODY)).expect("root can give a directory away");
        }
    }
}

/// Prints a line of the table of programs, and appends it to the file that `MEMFOLD_ROWS` names.
///
/// # Panics
/// If that file cannot be written.
pub fn report(folding: &Folding, program: &str, work: &str, result: &str) {
    let all = run::counters(folding);
    let evicted: u64 = all.iter().map(|c| c.pages.evicted).sum();
    let restored: u64 = all.iter().map(|c| c.pages.restored + c.pages.second_chance).sum();
    let folded = all.iter().filter(|c| c.pages.evicted > 0).count();
    let line = format!("| {program} | {work} | {folded} | {evicted} | {restored} | {result} |\n");
    print!("{line}");
    if let Some(path) = std::env::var_os("MEMFOLD_ROWS") {
        let mut file =
            OpenOptions::new().append(true).create(true).open(path).expect("the table can be written");
        file.write_all(line.as_bytes()).expect("the table can be written");
    }
}

/// The words that start a command folded.
fn prefix(folding: &Folding) -> String {
    let mut command = Command::new("env");
    folding.apply(&mut command);
    let text = |word: &OsStr| {
        let text = word.to_str().expect("paths and settings are text").to_owned();
        assert!(!text.contains(char::is_whitespace), "{text:?} would fall into words");
        text
    };
    let set = command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", text(name), text(value?))));
    std::iter::once("env".to_owned()).chain(set).collect::<Vec<_>>().join(" ")
}

/// A copy of the library that every user can read: checkouts may lie where only their owner looks.
fn library_for_all() -> TempDir {
    let place = tempfile::tempdir().expect("a temporary directory can be made");
    let library: PathBuf = place.path().join("libmemfold.so");
    fs::copy(crate::preload_library(), &library).expect("the library can be copied");
    for path in [place.path(), &library] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own files");
    }
    place
}
