//! What a machine has one of, and several tests set up: also of several suites that run on it at once.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

/// Swap devices are counted, and set up.
pub const SWAP: &str = "swap";
/// The system's setting for huge pages is changed.
pub const HUGE_PAGES: &str = "huge-pages";

/// Waits until no other test has what is named so, and has it until the file is dropped. `None` if this user cannot have the file: nor can he change the machine.
pub fn alone_with(what: &str) -> Option<File> {
    let path = std::env::temp_dir().join(format!("memfold-tests-{what}.lock"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).ok()?;
    // SAFETY: the descriptor of a file that is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    Some(file)
}
