//! Descriptor tables: one for an agent thread alone, and what it takes from that of its program.
//!
//! An agent that shares the program's table has its descriptors closed by programs that close all that they do not know,
//! and shows them to programs that look. So it leaves the table before it opens anything, with
//! `close_range(2)` and `CLOSE_RANGE_UNSHARE`: the kernel makes it a table without copying what is to be closed, so that the
//! program's files are held by nobody else for a moment (from Linux 6.13 on also where a descriptor in the middle is
//! kept; before, for microseconds).
//!
//! What it is not: for threads of the program.

use crate::call::{Errno, Result};
use crate::file::{self, Fd};
use crate::syscall;
use crate::thread::{current_pid, is_agent};

const UNSHARE: u32 = 1 << 1;

/// Gives the calling thread a descriptor table of its own, with nothing in it but `keep`, by the same numbers, where they are open.
///
/// # Errors
/// `ENOMEM`, and what a sandbox answers. The table is then still that of the program, in which nothing was closed.
pub fn leave<const N: usize>(mut keep: [Option<i32>; N]) -> Result<()> {
    keep.sort_unstable();
    let kept = keep.iter().flatten().filter_map(|&fd| u32::try_from(fd).ok());
    let (mut first, mut flags) = (0, UNSHARE);
    // No descriptor has the last number.
    for end in kept.chain([u32::MAX]) {
        if first < end {
            // SAFETY: no memory involved; from the first call on, the table is this thread's own.
            unsafe { syscall!(close_range, first, end - 1, flags) }?;
            flags = 0;
        }
        first = end.saturating_add(1);
    }
    Ok(())
}

/// A copy, in the table of the calling agent thread, of what the program's main thread has open under a number, to write to.
///
/// # Errors
/// Nothing is open there, the main thread has ended, or a sandbox forbids.
pub fn from_program(number: i32) -> Result<Fd> {
    // SAFETY: no memory involved.
    let pidfd = unsafe { syscall!(pidfd_open, current_pid(), 0) }?;
    // SAFETY: the kernel just made the descriptor for us.
    let pidfd = unsafe { Fd::from_raw(pidfd as i32) };
    // SAFETY: no memory involved.
    match unsafe { syscall!(pidfd_getfd, pidfd.raw(), number, 0) } {
        // SAFETY: as above.
        Ok(fd) => Ok(unsafe { Fd::from_raw(fd as i32) }),
        Err(Errno(libc::EBADF)) => Err(Errno(libc::EBADF)),
        // Some sandboxes know no such call. What is opened anew has its own place in a file, so it must append.
        Err(_) => reopen(number),
    }
}

fn reopen(number: i32) -> Result<Fd> {
    let mut path = [0u8; 32];
    let mut out = crate::text::Writer::new(&mut path);
    // Leaves the last byte zero.
    let _ = core::fmt::write(&mut out, format_args!("/proc/self/fd/{number}"));
    let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::EINVAL)?;
    file::open(path, libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY, 0)
}

/// Writes a line for people to the program's standard error, from a thread of the program as from an agent.
pub fn say(line: &str) {
    if !is_agent() {
        say_to(2, line);
    } else if let Ok(fd) = from_program(2) {
        say_to(fd.raw(), line);
    }
}

fn say_to(fd: i32, line: &str) {
    file::say(fd, line.as_bytes());
    file::say(fd, b"\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;
    use std::thread;

    fn open_numbers() -> usize {
        // `thread-self`: `self` is the main thread's table.
        std::fs::read_dir("/proc/thread-self/fd").map_or(0, Iterator::count)
    }

    #[test]
    fn a_thread_that_left_has_what_it_keeps_and_the_program_loses_nothing() {
        let mut shared = tempfile();
        let number = shared.as_raw_fd();
        let kept = thread::spawn(move || {
            leave([None, Some(number), Some(number)]).unwrap();
            // What is listed holds the descriptor by which it is listed.
            (open_numbers(), file::status(number).is_ok())
        });
        assert_eq!(kept.join().unwrap(), (2, true));
        let nothing = thread::spawn(|| {
            leave([]).unwrap();
            open_numbers()
        });
        assert_eq!(nothing.join().unwrap(), 1);
        let neighbours = thread::spawn(|| {
            // By its lowest number too, and by two that follow one another.
            leave([Some(1), Some(0), Some(2)]).unwrap();
            [0, 1, 2, 3].map(|number| file::status(number).is_ok())
        });
        let open = [0, 1, 2].map(|number| file::status(number).is_ok());
        assert_eq!(neighbours.join().unwrap(), [open[0], open[1], open[2], false]);
        shared.write_all(b"still open").unwrap();
    }

    #[test]
    fn what_the_program_has_open_can_be_written_to_from_there() {
        let mut shared = tempfile();
        let number = shared.as_raw_fd();
        thread::spawn(move || {
            leave([]).unwrap();
            let fd = from_program(number).unwrap();
            file::write_all(fd.raw(), b"one ").unwrap();
            drop(fd);
            file::write_all(reopen(number).unwrap().raw(), b"two").unwrap();
            assert!(from_program(1_000_000).is_err());
        })
        .join()
        .unwrap();
        let mut text = std::string::String::new();
        shared.rewind().unwrap();
        shared.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
    }

    fn tempfile() -> File {
        use std::os::fd::FromRawFd;
        // SAFETY: a name, and the kernel just made the descriptor for us.
        unsafe {
            let fd = libc::memfd_create(c"memfold test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        }
    }
}
