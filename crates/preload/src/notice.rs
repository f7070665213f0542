//! Lines on standard error: in a program's own output, so there are few of them, and none where it does not want any.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering::*};
use memfold_pager::control_file::ControlDir;
use memfold_pager::Line;
use memfold_sys::{file, table, thread};

/// Whether nothing is said.
pub static QUIET: AtomicBool = AtomicBool::new(false);
/// Directory of the control files. Written by the constructor only.
pub static CONTROL_DIR: ControlDir = ControlDir::new();

/// Writes a line to standard error.
pub fn say(line: &str) {
    if thread::is_agent() {
        if let Ok(fd) = table::from_program(2) {
            say_to(fd.raw(), line);
        }
    } else {
        say_to(2, line);
    }
}

fn say_to(fd: i32, line: &str) {
    file::say(fd, line.as_bytes());
    file::say(fd, b"\n");
}

/// Writes a line to standard error, once for all processes of a run.
pub fn say_once(line: &str) {
    if QUIET.load(Relaxed) {
        return;
    }
    if let Ok(dir) = CONTROL_DIR.open() {
        if matches!(dir.create(c"notice", libc::O_WRONLY), Err(e) if e.0 == libc::EEXIST) {
            return;
        }
    }
    say(line);
}

/// Says once that a variable has a value that it cannot have; what is allowed follows "it takes".
pub fn complain(variable: &str, value: &str, allowed: &str) {
    let mut line = Line::new();
    let _ = write!(line, "memfold: ignoring {variable}={value}: it takes {allowed}");
    say_once(line.as_str());
}
