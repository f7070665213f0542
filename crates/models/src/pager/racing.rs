//! Reading memory that others may change meanwhile, in a model, and clearing what others may read: they may do so between the first
//! word and the rest.

use crate::world::enter;

/// As in `sys`.
///
/// # Safety
/// As in `sys`.
pub unsafe fn copy(from: usize, to: &mut [u8]) {
    let (first, rest) = to.split_at_mut(to.len().min(8));
    // SAFETY: the caller's contract, for the first word and for the rest.
    unsafe {
        linux::racing::copy(from, first);
        enter(|_| ());
        linux::racing::copy(from + 8, rest);
    }
}

/// As in `sys`.
///
/// # Safety
/// As in `sys`.
pub unsafe fn clear(at: usize, len: usize) {
    // SAFETY: the caller's contract, for the first word and for the rest.
    unsafe {
        linux::racing::clear(at, len.min(8));
        enter(|_| ());
        linux::racing::clear(at + 8, len.saturating_sub(8));
    }
}
