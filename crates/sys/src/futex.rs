//! Sleeping on and waking at a word of memory (`futex(2)`), private to the process or shared.

use crate::call::Result;
use crate::inject::{self, Point};
use crate::syscall;
use crate::time::Nanos;
use core::sync::atomic::AtomicU32;

/// Sleeps while `word` holds `expected`, at most `timeout`. Returns on a wake-up, `EAGAIN` where the word
/// held something else, `EINTR` or `ETIMEDOUT`; callers check the word again in every case.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Result<()> {
    if let Some(error) = inject::error(Point::Futex) {
        return Err(error);
    }
    let ts = timeout.map(Nanos::to_timespec);
    let ts_ptr = ts.as_ref().map_or(core::ptr::null(), |t| t as *const libc::timespec);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the timespec live across the call.
    unsafe { syscall!(futex, word.as_ptr() as usize, op, expected, ts_ptr as usize, 0, 0) }.map(drop)
}

/// Wakes at most `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel only looks at the address of the word.
    let _ = unsafe { syscall!(futex, word.as_ptr() as usize, op, count) };
}
