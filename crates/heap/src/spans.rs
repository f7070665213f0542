//! Blocks of a heap's own spans: cutting them, taking free ones, giving them back, and getting and retiring whole spans.
//!
//! What it is: steps of the slow paths, from one heap's bins to its spans and back ([`crate::refill`], [`crate::flush`]). They run in
//! the thread that uses the heap, without any lock of their own; the arena takes its lock for the moment in which a span changes hands.
//! What it is not: about blocks of other heaps.
//!
//! Invariants: `used + free_count + (capacity - carved) == capacity` for every span, where `used` counts the
//! blocks in bins and on remote lists too, and dormant ones ([`crate::dormant`]).

use crate::bin::{Block, Run};
use crate::heap::{shelf, Heap};
use crate::{classes, dormant, links, misuse, slots};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use memfold_arena::{Kind, Span};
use memfold_sys::PAGE_SIZE;

/// Empty spans of blocks up to this many bytes stay with a heap that has no other span of the class.
const RETAINED: usize = 16 << 10;

/// Bytes that processors pass between them.
const CACHE_LINE: usize = 64;

/// Takes a span that has no more to give off the list of its class.
pub(crate) fn unlink_if_full(heap: &'static Heap, span: &'static Span) {
    if !has_block(span) && span.dormant.load(Relaxed) == 0 && span.linked.get() {
        heap.partial[span.class() as usize].remove(span);
    }
}

/// Whether the span has a free block, or room for another, without a page being brought back.
pub(crate) fn has_block(span: &Span) -> bool {
    span.free_count.get() > 0 || span.carved.load(Relaxed) < span.capacity.get()
}

/// Changes the tags in a span's owner's word.
pub(crate) fn change_owner(span: &Span, change: impl Fn(usize) -> usize) {
    let _ = span.owner.fetch_update(SeqCst, Relaxed, |owner| Some(owner.map_addr(&change)));
}

/// An empty span that the heap kept, as one of `class`, in the list of its class.
pub(crate) fn kept_span(heap: &'static Heap, class: usize) -> Option<&'static Span> {
    begin(heap, class, heap.front.take(classes::span_pages(class))?)
}

/// A fresh span of `class` from the arena, likewise.
pub(crate) fn new_span(heap: &'static Heap, class: usize) -> Option<&'static Span> {
    let pages = classes::span_pages(class);
    begin(heap, class, memfold_arena::alloc(heap.domain.get(), pages, PAGE_SIZE, Kind::Blocks)?)
}

/// Makes an empty span one of `class`. `None`, and it is gone, if there is no memory for its records.
fn begin(heap: &'static Heap, class: usize, span: &'static Span) -> Option<&'static Span> {
    let block_size = classes::block_size(class);
    span.set_blocks(block_size as u32, class as u8);
    // What a kept span's last blocks were linked to are no blocks of this class.
    span.free.set(core::ptr::null_mut());
    span.free_count.set(0);
    span.carved.store(0, Relaxed);
    span.capacity.set((span.bytes() / block_size) as u32);
    let tag =
        if misuse::is_on() { core::ptr::without_provenance_mut(Heap::TAG) } else { core::ptr::null_mut() };
    if misuse::is_on() && !slots::prepare(span, span.zero()) {
        // One that was kept has been written to.
        memfold_arena::free(span, if span.reused() { span.pages() } else { 0 });
        return None;
    }
    span.shelf.store(shelf_for(span, heap.is_cold.get()), Relaxed);
    span.owner.store(heap.as_owner(tag), Release);
    heap.partial[class].push(span);
    Some(span)
}

/// The mark of the heaps that may keep blocks of a span though it is another's: those of its domain, or none.
pub(crate) fn shelf_of(span: &Span) -> u8 {
    // SAFETY: owners are heaps, which live for ever.
    shelf_for(span, unsafe { (*Heap::owner_of(span)).is_cold.get() })
}

/// The same for a span that a heap is about to own, or owns.
fn shelf_for(span: &Span, is_cold: bool) -> u8 {
    // Two threads must not write to one cache line because each has kept a block of it, checked blocks are in no bin, and who asks for any block
    // is to get no cold one.
    let is_kept = span.block_size() as usize >= CACHE_LINE && !misuse::is_on() && !is_cold;
    if is_kept {
        shelf(span.domain())
    } else {
        0
    }
}

/// Moves up to half a bin of free blocks from a span to the bin, which is empty, and returns one more.
pub(crate) fn take(heap: &'static Heap, span: &'static Span) -> *mut Block {
    let class = span.class() as usize;
    let count = span.free_count.get().min(heap.depths.limit(class) as u32 / 2);
    let block = span.free.get().cast::<Block>();
    let mut last = block;
    for _ in 1..count {
        // SAFETY: blocks on a span's list are free, and `give_run` linked them.
        last = unsafe { links::get(last) };
    }
    // SAFETY: as above.
    let (second, rest) = unsafe { (links::get(block), links::get(last)) };
    if count > 1 {
        debug_assert!(links::key() == 0, "links in bins are not encoded");
        // SAFETY: the blocks are free, of this class and of a span of this heap.
        unsafe { heap.bin(class).push_run(Run { first: second, last, count: count - 1 }) };
    }
    span.free.set(rest.cast());
    span.free_count.set(span.free_count.get() - count);
    span.set_used(span.used() + count);
    block
}

/// Cuts fresh blocks: one, or as many small ones as lie on the same page. Returns the first.
pub(crate) fn carve(heap: &'static Heap, span: &'static Span) -> (*mut Block, bool) {
    let class = span.class() as usize;
    let block_size = span.block_size() as usize;
    let first = span.start() + span.carved.load(Relaxed) as usize * block_size;
    let mut count = 1;
    if block_size <= classes::LINKED {
        let page_end = (first + block_size).next_multiple_of(PAGE_SIZE);
        let left = (span.capacity.get() - span.carved.load(Relaxed)) as usize;
        count = ((page_end - first) / block_size).min(left).min(classes::limit(class) as usize / 2);
        // Last first, so that the bin hands them out in the order of their addresses.
        for index in (1..count).rev() {
            // SAFETY: the block lies in the span, was never handed out, and is of this class and heap.
            unsafe { heap.bin(class).push((first + index * block_size) as *mut Block) };
        }
    }
    span.carved.store(span.carved.load(Relaxed) + count as u32, Relaxed);
    span.set_used(span.used() + count as u32);
    (first as *mut Block, span.zero())
}

/// Returns a block to its span; an empty span goes back to the arena.
///
/// # Safety
/// The block is free, in no list, and of a span of `heap`.
pub(crate) unsafe fn give(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    // SAFETY: the caller's contract.
    unsafe { give_run(heap, span, Run::of_one(block)) };
}

/// Returns the blocks of a run to their span; an empty span goes back to the arena.
///
/// # Safety
/// The blocks are free, in no list, and of the span, which is of `heap`; one block if it is checked, or where links are encoded.
#[inline]
pub(crate) unsafe fn give_run(heap: &'static Heap, span: &'static Span, run: Run) {
    debug_assert!(heap.has(span));
    if slots::is_checked(span) {
        slots::open(span, run.first);
    } else {
        // SAFETY: the blocks are free and in no list.
        unsafe { links::set(run.last, span.free.get().cast()) };
        span.free.set(run.first.cast());
    }
    span.free_count.set(span.free_count.get() + run.count);
    span.set_used(span.used() - run.count);
    let partial = &heap.partial[span.class() as usize];
    if !span.linked.get() {
        partial.push(span);
    }
    if is_empty(span) && !(partial.is_only(span) && span.block_size() as usize <= RETAINED) {
        retire(heap, span);
    }
}

/// Whether nobody has a block of the span, the program, a bin or a list.
pub(crate) fn is_empty(span: &Span) -> bool {
    span.used() == span.dormant.load(Relaxed)
}

/// Takes an empty span off the list of its class and keeps it for later, or gives it back to the arena.
pub(crate) fn retire(heap: &'static Heap, span: &'static Span) {
    heap.partial[span.class() as usize].remove(span);
    let is_away = span.dormant.load(Relaxed) > 0;
    if is_away {
        dormant::forget(span);
    }
    // What is away is not kept: the arena drops that before it hands it out again.
    if is_away || !heap.front.put(span) {
        free_span(span);
    }
}

/// Gives an empty span back to the arena.
pub(crate) fn free_span(span: &'static Span) {
    let touched = span.carved.load(Relaxed) as usize * span.block_size() as usize;
    // What was touched before it was reused is not known; nor which blocks of a checked one were.
    memfold_arena::free(
        span,
        if span.reused() || slots::is_checked(span) { span.pages() } else { touched.div_ceil(PAGE_SIZE) },
    );
}
