//! The checked way of the slow paths: blocks that are freed twice, or lists that were written over, end the program.
//!
//! What it is: a mark for each block that the program has, kept out of line; links between free blocks that only this
//! process can read ([`crate::links`]); an order of blocks that cannot be foretold; and blocks of whole pages in mappings
//! of their own between pages that cannot be touched. What it is not: free, or on any fast path. A checked span's owner is
//! tagged, so that no free of its blocks looks like a local one, and bins stay empty, so that no allocation is at hand.
//!
//! Invariants: a block of a checked span is marked exactly while the program has it. Blocks from before [`harden`] are not
//! checked.

use crate::bin::Block;
use crate::heap::{Heap, State};
use crate::misuse::{self, defect};
use crate::{classes, links, orphans, refill, registry, remote, spans, tls};
use core::sync::atomic::Ordering::*;
use memfold_arena::Span;

/// At most so many blocks of a list are passed over to take one that cannot be foretold.
const DEPTH: u64 = 8;

/// One allocation in so many cuts fresh blocks though others are free: on average three and a half more than it hands out, so that
/// the list grows shorter all the same, and a block in it that was written to comes to be looked at.
const FRESH: u64 = 8;

/// From now on blocks are checked. `report` is told of a defect before the program ends; `key` must be hard to guess and
/// not 0. To be called once, while the process has one thread.
pub fn harden(key: usize, report: fn(what: &str, address: usize)) {
    misuse::report_to(report);
    links::set_key(key);
    let heap = tls::get();
    if !registry::is_sentinel(heap) {
        // The lists of this heap are readable for all; nobody takes from them any more.
        heap.user.store(0, Relaxed);
        heap.user_tid.store(0, Relaxed);
        heap.state.store(State::Orphan as u8, Relaxed);
        orphans::count();
        tls::set(&tls::EMPTY);
    }
    misuse::turn_on();
}

/// Whether an owner's word says that the span is checked.
#[inline]
pub(crate) fn is_checked(span: &Span) -> bool {
    span.owner.load(Relaxed) as usize & Heap::TAG != 0
}

/// Random numbers of a heap: xorshift64 (Marsaglia, "Xorshift RNGs", 2003), begun with the key and the heap's address.
fn draw(heap: &Heap) -> u64 {
    let mut x = heap.draw.get();
    if x == 0 {
        x = (links::key() ^ core::ptr::from_ref(heap) as usize) as u64 | 1;
    }
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    heap.draw.set(x);
    x
}

/// The number of a block in its span; the program ends if there is no block at that address.
fn index_of(span: &Span, block: usize) -> usize {
    let (offset, size) = (block.wrapping_sub(span.start()), span.block_size() as usize);
    if !offset.is_multiple_of(size) || offset / size >= span.carved.load(Relaxed) as usize {
        defect("an address that is not the start of a block was freed", block);
    }
    offset / size
}

/// Marks a block as the program's.
fn mark(span: &Span, block: usize) {
    if is_checked(span) && span.mark(index_of(span, block)) {
        defect("the list of free blocks is corrupted: it holds a block that is in use", block);
    }
}

/// A block of `class`, and whether it is known to be all zero; null if the kernel gives no more memory.
pub(crate) fn alloc(heap: &'static Heap, class: usize) -> (*mut u8, bool) {
    let Some(span) = refill::with_room(heap, class) else { return (core::ptr::null_mut(), false) };
    let fresh = span.carved.load(Relaxed) < span.capacity.get();
    if span.free_count.get() == 0 || fresh && draw(heap).is_multiple_of(FRESH) {
        // Several at a time in random order; the block that is returned is one of them.
        let batch = if classes::block_size(class) <= classes::LINKED { 1 + draw(heap) % DEPTH } else { 1 };
        let zero = span.zero() && batch == 1;
        let mut block = spans::carve_one(span);
        for _ in 1..batch {
            if span.carved.load(Relaxed) == span.capacity.get() {
                break;
            }
            let mut other = spans::carve_one(span);
            if draw(heap).is_multiple_of(2) {
                core::mem::swap(&mut block, &mut other);
            }
            // SAFETY: the block was just cut and is in no list.
            unsafe { spans::give(heap, span, other) };
        }
        spans::unlink_if_full(heap, span);
        mark(span, block as usize);
        return (block.cast(), zero);
    }
    let block = spans::take_at(span, (draw(heap) % DEPTH).min(u64::from(span.free_count.get() - 1)) as u32);
    spans::unlink_if_full(heap, span);
    mark(span, block as usize);
    (block.cast(), false)
}

/// Frees a block of a checked span.
///
/// # Safety
/// The span's owner is a heap.
pub(crate) unsafe fn free(span: &'static Span, block: *mut Block) {
    if !span.unmark(index_of(span, block as usize)) {
        defect("a block was freed twice", block as usize);
    }
    let heap = tls::get();
    if heap.has(span) {
        // SAFETY: the mark says that the program had the block, and now it is ours.
        unsafe { spans::give(heap, span, block) };
    } else {
        // SAFETY: as above.
        unsafe { remote::send(span, block) };
    }
}

/// Ends the program if a block that it resizes is not its own.
pub(crate) fn must_be_live(span: &Span, block: usize) {
    if is_checked(span) && !span.is_marked(index_of(span, block)) {
        defect("a block was resized that was freed before", block);
    }
}
