//! Reading memory that others may change meanwhile, and clearing what others may read.
//!
//! Rust lets nobody have a reference to such memory, nor read it plainly. What is read here word by word is of no use by
//! itself: the caller finds out afterwards, by something that orders it, whether the memory was changed, and throws the copy
//! away then.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reads the word of 8 bytes at an address that is a multiple of 8.
///
/// # Safety
/// It is readable. Whoever writes to it meanwhile is the kernel, another process, or writes by atomics.
#[inline]
pub unsafe fn word(at: usize) -> u64 {
    debug_assert!(at.is_multiple_of(8));
    // SAFETY: readable by the caller's contract, and aligned; read by an atomic, as the contract demands of writers.
    let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
    // Relaxed: the caller orders what it does with it.
    word.load(Relaxed)
}

/// Copies `to.len()` bytes from the address `from`, a multiple of 8. Each word of 8 bytes is read at once; they need not be
/// of the same moment.
///
/// # Safety
/// Whole words are readable there, also the last one that `to` takes a part of. Whoever writes to them meanwhile is the
/// kernel, another process, or writes by atomics.
pub unsafe fn copy(from: usize, to: &mut [u8]) {
    // SAFETY: the caller's contract.
    let word = |n: usize| unsafe { word(from + n * 8) }.to_ne_bytes();
    let mut whole = to.chunks_exact_mut(8);
    let mut n = 0;
    for chunk in &mut whole {
        chunk.copy_from_slice(&word(n));
        n += 1;
    }
    let rest = whole.into_remainder();
    if !rest.is_empty() {
        rest.copy_from_slice(&word(n)[..rest.len()]);
    }
}

/// Fills whole words from the address `at`, a multiple of 8, with zeros, as many as `len` bytes take.
///
/// # Safety
/// They are writable, and whoever reads them meanwhile does so by the functions above.
pub unsafe fn clear(at: usize, len: usize) {
    debug_assert!(at.is_multiple_of(8));
    for place in (at..at + len).step_by(8) {
        // SAFETY: writable by the caller's contract, and aligned.
        let word = unsafe { AtomicU64::from_ptr(place as *mut u64) };
        // Relaxed: the caller orders what it does next.
        word.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn every_length_is_copied_and_no_byte_more() {
        let from: Vec<u64> = (0..9u64).map(|n| n.wrapping_mul(0x0123_4567_89AB_CDEF)).collect();
        let bytes: Vec<u8> = from.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for len in 0..=72 {
            let mut to = [0xEE; 80];
            // SAFETY: the vector has nine words.
            unsafe { copy(from.as_ptr() as usize, &mut to[..len]) };
            assert_eq!(to[..len], bytes[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0xEE));
        }
    }
}
