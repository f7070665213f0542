//! Descriptors, of which a process has so many and no more: whether one is left, and one that is kept in reserve.

use nix::errno::Errno;
use std::fs::File;
use std::io;

/// One that can be given up for another that is closed at once.
///
/// # Errors
/// None is left.
pub fn open() -> io::Result<File> {
    File::open("/dev/null")
}

/// Whether it is for want of descriptors, of this process's or of all the system's.
pub fn is_crowded(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Whether none is left. What looks for an address, or speaks TLS, needs some and says other things where there are none.
pub fn is_none_left() -> bool {
    open().is_err_and(|error| is_crowded(&error))
}
