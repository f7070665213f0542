//! Memory that the host of a virtual machine gives before a run instead of in it.
//!
//! A host that takes free memory back (a balloon with free page reporting) serves the first touch of such memory anew: on the
//! machine that wrote these figures in 5 ms for a huge page, in place of 0.1. Which run meets such pages is chance, and has
//! nothing to do with what is compared. So as much memory as a run may need is touched and freed before each.

use crate::process::available_memory;
use memfold_sys::{mem, EXTENT_SIZE};

/// Touches `bytes` of memory and frees them, or half of what there is if that is less. A kernel that refuses spoils nothing.
pub fn back(bytes: u64) {
    let len = (bytes.min(available_memory() / 2) as usize).next_multiple_of(EXTENT_SIZE);
    let Ok(base) = mem::map_anonymous(0, len, libc::MAP_NORESERVE) else { return };
    // SAFETY: our own mapping, which nobody else has seen.
    unsafe {
        let _ = mem::madvise(base, len, libc::MADV_HUGEPAGE);
        let _ = mem::madvise(base, len, libc::MADV_POPULATE_WRITE);
        let _ = mem::munmap(base, len);
    }
}
