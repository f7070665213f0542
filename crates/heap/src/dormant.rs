//! Dormant blocks: free, and noted in a bitmap out of line, because their pages are away from memory.
//!
//! A free block holds a link to the next, so to free one whose page is away would have the pager bring the page back, for the sake of bytes that
//! nobody wants. These serve again a page's at a time, when their heap has no other of their class.
//!
//! What it is: the bitmap. Which blocks become dormant, [`crate::away`] says.
//!
//! Invariants: dormant blocks count as used; `dormant` is the number of bits that are set. Both are the owner's alone. A span with a dormant block
//! is in the list of its class.

use crate::bin::Block;
use crate::{classes, links};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use memfold_arena::Span;
use memfold_sys::PAGE_SIZE;

/// Notes a free block of a span of the calling thread's heap, which is in no list, as dormant; one that is noted already stays as it is. False, and
/// nothing is done, if it is no block's address or there is no memory for the bitmap.
pub(crate) fn note(span: &Span, block: usize) -> bool {
    let offset = block - span.start();
    let slot = classes::blocks_before(span.class() as usize, offset);
    if slot * span.block_size() as usize != offset {
        return false;
    }
    let Some(marks) = span.marks(span.capacity.get() as usize) else { return false };
    let (word, bit) = (&marks[slot / 64], 1 << (slot % 64));
    let before = word.load(Relaxed);
    if before & bit == 0 {
        word.store(before | bit, Relaxed);
        add(span, 1);
    }
    true
}

/// Has those blocks serve again that lie on the first page that has dormant ones. It comes back for that.
pub(crate) fn wake(span: &Span) {
    let size = span.block_size() as usize;
    let Some(marks) = span.marks(span.capacity.get() as usize) else { return };
    let Some(first) = next_marked(marks, 0) else { return };
    let page_of = |slot: usize| (span.start() + slot * size) / PAGE_SIZE;
    let (mut slot, mut count) = (Some(first), 0);
    while let Some(this) = slot.filter(|slot| page_of(*slot) == page_of(first)) {
        let word = &marks[this / 64];
        word.store(word.load(Relaxed) & !(1 << (this % 64)), Relaxed);
        let block = (span.start() + this * size) as *mut Block;
        // SAFETY: a dormant block is free and in no list.
        unsafe { links::set(block, span.free.get().cast()) };
        span.free.set(block.cast());
        count += 1;
        slot = next_marked(marks, this + 1);
    }
    add(span, 0u32.wrapping_sub(count));
    span.free_count.set(span.free_count.get() + count);
    span.set_used(span.used() - count);
}

/// Forgets which blocks of a span are dormant. In a forked child the number and the bits may not agree: its owner may have been about to write them.
pub(crate) fn forget(span: &Span) {
    span.dormant.store(0, Relaxed);
    if span.has_marks() {
        if let Some(marks) = span.marks(span.capacity.get() as usize) {
            marks.iter().for_each(|word| word.store(0, Relaxed));
        }
    }
}

/// For the owner, who alone writes it: counts so many dormant blocks more, modulo 2^32.
fn add(span: &Span, count: u32) {
    span.dormant.store(span.dormant.load(Relaxed).wrapping_add(count), Relaxed);
}

/// The first block that is marked, from `slot` on.
fn next_marked(marks: &[AtomicU64], slot: usize) -> Option<usize> {
    let mut mask = u64::MAX << (slot % 64);
    for (index, word) in marks.iter().enumerate().skip(slot / 64) {
        let found = word.load(Relaxed) & mask;
        if found != 0 {
            return Some(index * 64 + found.trailing_zeros() as usize);
        }
        mask = u64::MAX;
    }
    None
}
