//! What a machine has one of, and several tests set up: also of several suites that run on it at once.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

/// Swap devices are counted, and set up.
pub const SWAP: &str = "swap";
/// The system's setting for huge pages is changed.
pub const HUGE_PAGES: &str = "huge-pages";
/// The kernel's merging of pages that are alike is turned on.
pub const MERGING: &str = "merging";

/// Waits until no other test of this user has what is named so, and has it until the file is dropped. Only root can change the machine, and no file of another
/// user's keeps root from its own.
///
/// # Panics
/// If no temporary file can be made or locked.
pub fn alone_with(what: &str) -> File {
    // SAFETY: no arguments, no effects.
    let user = unsafe { libc::geteuid() };
    let path = std::env::temp_dir().join(format!("memfold-tests-{user}-{what}.lock"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // SAFETY: the descriptor of a file that is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    file
}
