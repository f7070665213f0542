//! Core dumps of programs that tests have die.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether a core comes to lie where the program ran; says so if not.
pub fn are_left_behind() -> bool {
    const PATTERN: &str = "/proc/sys/kernel/core_pattern";
    let left = fs::read_to_string(PATTERN).is_ok_and(|pattern| pattern.trim() == "core");
    if !left {
        eprintln!("not tried: cores go elsewhere here ({PATTERN})");
    }
    left
}

/// A command for the program, with leave to leave a core of any length.
pub fn leaving_one(program: impl AsRef<OsStr>) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]).arg(program);
    shell
}

/// The one in a directory.
///
/// # Panics
/// There is none.
pub fn one_in(directory: &Path) -> PathBuf {
    let all = fs::read_dir(directory).expect("the directory can be read").flatten();
    let is_core =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"));
    all.map(|entry| entry.path()).find(is_core).expect("a core dump")
}
