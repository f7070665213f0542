//! Mappings that are too small to be managed each for itself, and together are a heap: Ruby's consists of pages of 16 KiB, each mapped with
//! room to align it, of which the rest is unmapped again.
//!
//! Tables for 2 MiB are a lot for one such mapping. Where one comes to lie on or beside the one before it, again and again, so that
//! [`LEAST`] have come together, it is worth them, and with it all that follow: they lie beside what is known. The few that
//! came first stay what they are, since nobody knows what has become of them.

use core::sync::atomic::{AtomicUsize, Ordering::*};
use memfold_sys::PAGE_SIZE;

/// Mappings shorter than this are managed only if they lie next to one that is, or make a row of that length.
pub(crate) const LEAST: usize = 64 << 10;
/// In an address its lowest bits are free for a number of pages.
const COUNT: usize = PAGE_SIZE - 1;
const _: () = assert!(LEAST / PAGE_SIZE <= COUNT);

/// Where the row of the latest small mappings begins, and of how many pages it is. Threads that map at the same time may
/// shorten it for each other; then it takes longer to be found.
static ROW: AtomicUsize = AtomicUsize::new(0);

/// Whether a new mapping that is shorter than [`LEAST`] makes a row of that length with those before it.
pub(crate) fn makes_a_row(start: usize, len: usize) -> bool {
    let row = ROW.load(Relaxed);
    let (first, end) =
        joined((row & !COUNT, (row & COUNT) * PAGE_SIZE), (start, len.next_multiple_of(PAGE_SIZE)));
    let enough = end - first >= LEAST;
    ROW.store(if enough { 0 } else { first | ((end - first) / PAGE_SIZE) }, Relaxed);
    enough
}

/// From where to where both ranges reach, or the second where they do not meet.
fn joined((at, len): (usize, usize), (start, more): (usize, usize)) -> (usize, usize) {
    if start <= at + len && at <= start + more {
        (start.min(at), (start + more).max(at + len))
    } else {
        (start, start + more)
    }
}
