//! Whether one process may evict another's pages: it may not, on any Linux so far, and this asks the kernel itself.

use memfold_sys::file::Fd;
use memfold_sys::{syscall, Errno, Result};

/// Asks the kernel to drop nothing of the process's memory by `process_madvise(MADV_DONTNEED)` (Linux 5.10). `EINVAL` where
/// that advice is not taken from another process, `EPERM` or `ESRCH` where the process is out of reach.
pub fn try_to_evict(pid: u32) -> Result<()> {
    if pid == memfold_sys::thread::current_pid() {
        // Of its own pages a process may drop what it likes; that proves nothing.
        return Err(Errno::EINVAL);
    }
    // SAFETY: no memory involved, and the kernel just made the descriptor for us.
    let process = unsafe { Fd::from_raw(syscall!(pidfd_open, pid, 0)? as i32) };
    // SAFETY: an empty list of ranges.
    unsafe { syscall!(process_madvise, process.raw(), 0usize, 0usize, libc::MADV_DONTNEED, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_for_a_process_that_is_not_there_says_so() {
        assert_eq!(try_to_evict(0x3F_FFFF), Err(Errno::ESRCH));
        assert_eq!(try_to_evict(memfold_sys::thread::current_pid()), Err(Errno::EINVAL));
    }
}
