//! Lines on standard error: in a program's own output, so there are few of them, and none where it does not want any.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering::*};
use memfold_pager::control_file::ControlDir;
use memfold_pager::Line;

pub use memfold_sys::table::say;

/// Whether nothing is said.
pub static QUIET: AtomicBool = AtomicBool::new(false);
/// Directory of the control files. Written by the constructor only.
pub static CONTROL_DIR: ControlDir = ControlDir::new();

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
