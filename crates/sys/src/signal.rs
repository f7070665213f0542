//! Blocking every signal for the length of a critical section, and writing without any signal.

use crate::call::{Errno, Result};
use crate::syscall;

/// Signals stay blocked in this thread until this is dropped; then the mask is as it was.
///
/// The mask includes libc's internal signals 32 and 33 (thread cancellation and the set-user-ID broadcast),
/// which libc's own `pthread_sigmask` leaves out. A critical section must therefore be short.
#[must_use]
pub struct Blocked {
    old: u64,
}

/// Blocks every signal in the calling thread.
pub fn block_all() -> Blocked {
    Blocked::these(u64::MAX)
}

impl Blocked {
    /// Blocks the signals of a mask, beside those that are blocked already.
    fn these(mask: u64) -> Blocked {
        let mut old = 0u64;
        let (new, before) = (&raw const mask as usize, &raw mut old as usize);
        // SAFETY: both masks are the 8 bytes that the kernel expects.
        let _ = unsafe { syscall!(rt_sigprocmask, libc::SIG_BLOCK, new, before, 8) };
        Blocked { old }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: restores the mask that the kernel gave us.
        let _ =
            unsafe { syscall!(rt_sigprocmask, libc::SIG_SETMASK, &self.old as *const u64 as usize, 0, 8) };
    }
}

/// Makes a call that writes to a file or lengthens one, and takes back the signal by which the kernel answers a failure: SIGPIPE
/// where nobody reads (`EPIPE`), SIGXFSZ beyond `RLIMIT_FSIZE` (`EFBIG`). The program, whose thread this may be, did neither.
///
/// A signal of that number that was pending before stays so.
pub fn quietly<R>(write: impl FnOnce() -> Result<R>) -> Result<R> {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let blocked = Blocked::these(bit(libc::SIGPIPE) | bit(libc::SIGXFSZ));
    let pending = pending();
    let result = write();
    let raised = match result {
        Err(Errno(libc::EPIPE)) => bit(libc::SIGPIPE),
        Err(Errno(libc::EFBIG)) => bit(libc::SIGXFSZ),
        _ => 0,
    } & !pending;
    if raised != 0 {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (set, timeout) = (&raw const raised as usize, &raw const at_once as usize);
        // SAFETY: a mask of 8 bytes and a time; nothing is written.
        while unsafe { syscall!(rt_sigtimedwait, set, 0, timeout, 8) } == Err(Errno::EINTR) {}
    }
    drop(blocked);
    result
}

/// The signals that are pending for this thread, as a mask.
fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: the 8 bytes that the kernel expects.
    let _ = unsafe { syscall!(rt_sigpending, &raw mut set as usize, 8) };
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use std::os::fd::AsRawFd;

    const MASK: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

    #[test]
    fn a_pipe_that_nobody_reads_raises_nothing_in_the_thread_that_writes() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let _blocked = block_all();
        assert_eq!(quietly(|| file::write_all(writer.as_raw_fd(), b"x")), Err(Errno(libc::EPIPE)));
        assert_eq!(pending() & MASK, 0);
        // What was pending before is the program's.
        assert_eq!(file::write_all(writer.as_raw_fd(), b"x"), Err(Errno(libc::EPIPE)));
        assert_ne!(pending() & MASK, 0);
        assert_eq!(quietly(|| file::write_all(writer.as_raw_fd(), b"x")), Err(Errno(libc::EPIPE)));
        assert_ne!(pending() & MASK, 0);
        let set = MASK;
        // SAFETY: a mask of 8 bytes; takes the signal away, which would end the test.
        unsafe { syscall!(rt_sigtimedwait, &raw const set as usize, 0, 0, 8) }.unwrap();
    }
}
