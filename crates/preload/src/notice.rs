//! Lines on standard error: in a program's own output, so there are few of them, and none where it does not want any.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering::*};
use memfold_pager::control_file::ControlDir;
use memfold_pager::Line;

pub use memfold_sys::table::say;

/// Whether nothing is said.
pub static QUIET: AtomicBool = AtomicBool::new(false);
/// Directory of the control files. Written by the constructor only.
pub static CONTROL_DIR: ControlDir = ControlDir::new();

/// Writes a line to standard error, once for all processes of a run: lines that differ in numbers alone count as one.
pub fn say_once(line: &str) {
    if QUIET.load(Relaxed) {
        return;
    }
    if let Ok(dir) = CONTROL_DIR.open() {
        let mut name = *b"notice-00000000\0";
        mark(line, &mut name[7..15]);
        let name = CStr::from_bytes_with_nul(&name).unwrap_or(c"notice");
        if matches!(dir.create(name, libc::O_WRONLY), Err(e) if e.0 == libc::EEXIST) {
            return;
        }
    }
    say(line);
}

/// Writes a number of a line's own, of its letters, in hexadecimal digits.
fn mark(line: &str, digits: &mut [u8]) {
    // FNV-1a (Fowler, Noll and Vo), of 32 bits.
    let letters = line.bytes().filter(|byte| !byte.is_ascii_digit());
    let mut number =
        letters.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    for digit in digits {
        *digit = b"0123456789abcdef"[(number >> 28) as usize];
        number <<= 4;
    }
}

/// Says once that a variable has a value that it cannot have; what is allowed follows "it takes".
pub fn complain(variable: &str, value: &str, allowed: &str) {
    let mut line = Line::new();
    let _ = write!(line, "memfold: ignoring {variable}={value}: it takes {allowed}");
    say_once(line.as_str());
}
