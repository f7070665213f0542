//! Ends a system call in which a thread waits, where nothing else can: by a signal to that thread, again and again.
//!
//! A process can have the reads of its userfaultfd wait at any moment, as it shares the open file (`O_NONBLOCK` belongs to that, not
//! to the descriptor). Since Linux 6.10 a read can be told not to wait whatever the file says; before, this has it end with `EINTR`.
//!
//! Invariants: the handler does nothing, and no call is begun again because of it (no `SA_RESTART`).

use memfold_sys::{Errno, Result};
use std::sync::Once;

/// How long a call may wait.
const EVERY: i64 = 250_000_000;
/// Nobody else in the daemon uses it, and it ends nobody.
const SIGNAL: i32 = libc::SIGURG;

/// Signals to the thread that made it, until it is dropped.
pub(crate) struct Breaker(libc::timer_t);

// A timer is the process's; which thread it signals was settled when it was made.
// SAFETY: the number of a timer is valid in every thread.
unsafe impl Send for Breaker {}

impl Breaker {
    /// For the calling thread.
    pub fn start() -> Result<Breaker> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: zeros are an action without flags; the handler does nothing.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
                libc::sigaction(SIGNAL, &action, core::ptr::null_mut());
            }
        });
        // SAFETY: zeros are an event and a number that are filled in.
        let (mut event, mut timer): (libc::sigevent, libc::timer_t) = unsafe { core::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = memfold_sys::thread::current_tid() as i32;
        let every = libc::timespec { tv_sec: 0, tv_nsec: EVERY };
        let times = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: whole structures.
        let made = unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0
                && libc::timer_settime(timer, 0, &times, core::ptr::null_mut()) == 0
        };
        made.then_some(Breaker(timer)).ok_or(Errno::EAGAIN)
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        // SAFETY: made by us, and used no more.
        unsafe { libc::timer_delete(self.0) };
    }
}

extern "C" fn nothing(_: i32) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_read_that_waits_ends_again_and_again() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let _breaker = Breaker::start().unwrap();
        for _ in 0..3 {
            assert_eq!(memfold_sys::file::read(reader.as_raw_fd(), &mut [0]), Err(Errno::EINTR));
        }
    }
}
