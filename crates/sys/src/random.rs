//! Random bytes, from the kernel (getrandom(2)).

use crate::call::{Errno, Result};
use crate::syscall;

/// Fills `bytes`, waiting until the kernel has enough of them. What getrandom(2) answers, but for interruptions.
pub fn fill(mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the slice is valid for its length.
        match unsafe { syscall!(getrandom, bytes.as_mut_ptr() as usize, bytes.len(), 0) } {
            Ok(had) => bytes = &mut bytes[had..],
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
