//! Blocking every signal for the length of a critical section.

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
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: both masks are the 8 bytes that the kernel expects.
    let _ = unsafe {
        syscall!(
            rt_sigprocmask,
            libc::SIG_SETMASK,
            &all as *const u64 as usize,
            &mut old as *mut u64 as usize,
            8
        )
    };
    Blocked { old }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: restores the mask that the kernel gave us.
        let _ =
            unsafe { syscall!(rt_sigprocmask, libc::SIG_SETMASK, &self.old as *const u64 as usize, 0, 8) };
    }
}
