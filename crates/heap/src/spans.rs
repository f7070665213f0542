//! Between a heap's bins and its spans: refilling, flushing, retiring.
//!
//! What it is: the slow path of small and medium blocks. It runs in the thread that uses the heap, without
//! any lock of its own; the arena takes its lock for the moment in which a span changes hands.
//!
//! Invariants: `used + free_count + (capacity - carved) == capacity` for every span, where `used` counts the
//! blocks in bins and on remote lists too.

use crate::heap::{Block, Heap};
use crate::{classes, registry, remote};
use arena::{Kind, Span};
use core::sync::atomic::Ordering::{Relaxed, Release};
use sys::PAGE_SIZE;

/// Empty spans of blocks up to this many bytes stay with a heap that has no other span of the class.
const RETAINED: usize = 16 << 10;

/// A block of `class`, of which the bin may have no more, and whether it is known to be all zero; null if
/// the kernel gives no more memory.
pub(crate) fn refill(heap: &'static Heap, class: usize) -> (*mut u8, bool) {
    let partial = &heap.partial[class];
    if partial.first.get().is_none() || remote::is_waiting(heap) {
        remote::drain(heap, Some(class));
    }
    if partial.first.get().is_none() {
        registry::scavenge(heap, class);
    }
    let span = match partial.first.get() {
        Some(span) => span,
        None => match new_span(heap, class) {
            Some(span) => span,
            None => return (core::ptr::null_mut(), false),
        },
    };
    let (block, zero) = if span.free_count.get() > 0 { (take(heap, span), false) } else { carve(heap, span) };
    if span.free_count.get() == 0 && span.carved.load(Relaxed) == span.capacity.get() {
        partial.remove(span);
    }
    (block.cast(), zero)
}

fn new_span(heap: &'static Heap, class: usize) -> Option<&'static Span> {
    let span = arena::alloc(heap.domain.get(), classes::span_pages(class), PAGE_SIZE, Kind::Blocks)?;
    let block_size = classes::block_size(class);
    span.block_size.set(block_size as u32);
    span.class.set(class as u8);
    span.used.set(0);
    span.free_count.set(0);
    span.carved.store(0, Relaxed);
    span.capacity.set((span.bytes() / block_size) as u32);
    span.owner.store(heap as *const Heap as *mut u8, Release);
    heap.partial[class].push(span);
    Some(span)
}

/// Moves up to half a bin of free blocks from a span to the bin and returns one more.
fn take(heap: &'static Heap, span: &'static Span) -> *mut Block {
    let class = span.class.get() as usize;
    let count = span.free_count.get().min(classes::limit(class) as u32 / 2);
    let bin = heap.bin(class);
    let mut block = span.free.get().cast::<Block>();
    for _ in 1..count {
        // SAFETY: blocks on a span's list are free, mapped, and hold a link.
        let next = unsafe { (*block).next.get() };
        // SAFETY: the block is free, of this class and of a span of this heap.
        let _ = unsafe { bin.push(block) };
        block = next;
    }
    // SAFETY: as above.
    span.free.set(unsafe { (*block).next.get() }.cast());
    span.free_count.set(span.free_count.get() - count);
    span.used.set(span.used.get() + count);
    block
}

/// Cuts fresh blocks: one, or as many small ones as lie on the same page. Returns the first.
fn carve(heap: &'static Heap, span: &'static Span) -> (*mut Block, bool) {
    let class = span.class.get() as usize;
    let block_size = span.block_size.get() as usize;
    let first = span.start() + span.carved.load(Relaxed) as usize * block_size;
    let mut count = 1;
    if block_size <= classes::LINKED {
        let page_end = (first + block_size).next_multiple_of(PAGE_SIZE);
        let left = (span.capacity.get() - span.carved.load(Relaxed)) as usize;
        count = ((page_end - first) / block_size).min(left).min(classes::limit(class) as usize / 2);
        // Last first, so that the bin hands them out in the order of their addresses.
        for index in (1..count).rev() {
            // SAFETY: the block lies in the span, was never handed out, and is of this class and heap.
            let _ = unsafe { heap.bin(class).push((first + index * block_size) as *mut Block) };
        }
    }
    span.carved.store(span.carved.load(Relaxed) + count as u32, Relaxed);
    span.used.set(span.used.get() + count as u32);
    (first as *mut Block, span.zero())
}

/// Returns a block to its span; an empty span goes back to the arena.
///
/// # Safety
/// The block is free, in no list, and of a span of `heap`.
pub(crate) unsafe fn give(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    debug_assert!(heap.owns(span));
    // SAFETY: a free block is ours to write.
    unsafe { (*block).next.set(span.free.get().cast()) };
    span.free.set(block.cast());
    span.free_count.set(span.free_count.get() + 1);
    span.used.set(span.used.get() - 1);
    let partial = &heap.partial[span.class.get() as usize];
    if !span.linked.get() {
        partial.push(span);
    }
    if span.used.get() == 0 && !(partial.is_only(span) && span.block_size.get() as usize <= RETAINED) {
        retire(heap, span);
    }
}

fn retire(heap: &'static Heap, span: &'static Span) {
    heap.partial[span.class.get() as usize].remove(span);
    let touched = span.carved.load(Relaxed) as usize * span.block_size.get() as usize;
    arena::free(span, touched.div_ceil(PAGE_SIZE));
}

/// Takes what a full bin has too many of, the longest free, back to the spans.
#[cold]
pub(crate) fn flush(heap: &'static Heap, class: usize) {
    let limit = classes::limit(class);
    give_list(heap, heap.bin(class).cut(limit / 2, limit));
}

/// Empties every bin and retires every empty span.
pub(crate) fn flush_all(heap: &'static Heap) {
    for class in 0..classes::COUNT {
        give_list(heap, heap.bin(class).cut(0, classes::limit(class)));
        let mut span = heap.partial[class].first.get();
        while let Some(this) = span {
            span = this.next.get();
            if this.used.get() == 0 {
                retire(heap, this);
            }
        }
    }
}

fn give_list(heap: &'static Heap, mut block: *mut Block) {
    while !block.is_null() {
        // SAFETY: blocks in a bin are free, mapped, and hold a link.
        let next = unsafe { (*block).next.get() };
        if let Some(span) = arena::lookup(block as usize) {
            // SAFETY: bins hold free blocks of the heap's own spans, and this one was just taken out.
            unsafe { give(heap, span, block) };
        }
        block = next;
    }
}
