//! Frees from other threads, without a lock.
//!
//! What it is: each heap has a list onto which any thread pushes blocks by compare-and-swap and from which
//! its user takes all at once (a Treiber stack, IBM RJ 5118, 1986; taking all at once avoids the ABA
//! problem). What it is not: urgent; the user of the heap looks when a bin runs dry.
//!
//! Invariants: a block on such a list counts as used in its span, so the span stays. A span may change
//! hands while a block is under way to the old hands, which then send it on.

use crate::heap::{Block, Heap};
use crate::{links, spans};
use arena::Span;
use core::sync::atomic::Ordering::*;

/// At least so many blocks are looked at in one go, if there are; then it is enough if the class that is
/// asked for has some.
const BATCH: usize = 64;

/// Sends a free block to the heap that its span belongs to.
///
/// # Safety
/// The block is free, in no list, and of a span that belongs to a heap.
#[cold]
pub(crate) unsafe fn send(span: &Span, block: *mut Block) {
    let owner = Heap::owner_of(span);
    // SAFETY: owners are heaps, which live for ever.
    let list = unsafe { &(*owner).remote.0 };
    let mut head = list.load(Relaxed);
    loop {
        // SAFETY: a free block is ours to write until it is on the list.
        unsafe { links::set(block, head) };
        match list.compare_exchange_weak(head, block, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Whether somebody sent something to the heap.
pub(crate) fn is_waiting(heap: &Heap) -> bool {
    !heap.pending.get().is_null() || !heap.remote.0.load(Relaxed).is_null()
}

/// Takes blocks that others sent back to their spans: all of them, or only until `wanted` has a span with
/// free blocks.
pub(crate) fn drain(heap: &'static Heap, wanted: Option<usize>) {
    let mut seen = 0;
    loop {
        let block = match heap.pending.get() {
            block if !block.is_null() => block,
            _ => heap.remote.0.swap(core::ptr::null_mut(), Acquire),
        };
        if block.is_null() {
            return;
        }
        // SAFETY: blocks on the list are free, and `send` linked them.
        heap.pending.set(unsafe { links::get(block) });
        if let Some(span) = arena::lookup(block as usize) {
            if heap.has(span) {
                // SAFETY: the block was just taken off the list, and its span is this heap's.
                unsafe { spans::give(heap, span, block) };
            } else {
                // SAFETY: the block was just taken off the list; its span went to another heap.
                unsafe { send(span, block) };
            }
        }
        seen += 1;
        if seen >= BATCH && wanted.is_some_and(|class| heap.partial[class].first.get().is_some()) {
            return;
        }
    }
}
