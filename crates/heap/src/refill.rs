//! Where blocks come from when a bin is empty: the heap's spans, what other threads sent, the heaps of threads that are gone, and at last
//! a new span.
//!
//! What it is not: for checked blocks, which never lie in bins ([`crate::checked`]).

use crate::heap::{Heap, Partial};
use crate::{dormant, orphans, registry, remote, spans};
use core::sync::atomic::Ordering::{Relaxed, Release};
use memfold_arena::Span;

/// A block of `class`, of which the bin may have no more, and whether it is known to be all zero; null if
/// the kernel gives no more memory.
pub(crate) fn refill(heap: &'static Heap, class: usize) -> (*mut u8, bool) {
    heap.depths.note_empty(class);
    if remote::is_waiting(heap) {
        remote::drain(heap, Some(class));
        let block = heap.bin(class).pop();
        if !block.is_null() {
            return (block.cast(), false);
        }
    }
    let Some(span) = with_room(heap, class) else { return (core::ptr::null_mut(), false) };
    if !spans::has_block(span) {
        dormant::wake(span);
    }
    let (block, zero) =
        if span.free_count.get() > 0 { (spans::take(heap, span), false) } else { spans::carve(heap, span) };
    spans::unlink_if_full(heap, span);
    (block.cast(), zero)
}

/// A span of `class` that has a free block, a dormant one, or room for another.
pub(crate) fn with_room(heap: &'static Heap, class: usize) -> Option<&'static Span> {
    let partial = &heap.partial[class];
    if partial.first.get().is_none() || remote::is_waiting(heap) {
        remote::drain(heap, Some(class));
    }
    if partial.first.get().is_none() {
        return another_span(heap, class);
    }
    prefer_awake(partial);
    partial.first.get()
}

/// A span of `class` where the heap has none with room: one that it kept, one of a thread that is gone, or a fresh one.
fn another_span(heap: &'static Heap, class: usize) -> Option<&'static Span> {
    let kept = spans::kept_span(heap, class);
    if kept.is_some() {
        return kept;
    }
    remote::dispatch(heap);
    scavenge(heap, class);
    heap.partial[class].first.get().or_else(|| spans::new_span(heap, class))
}

/// So many spans that have dormant blocks alone, or pages that went away, are passed over for one that has neither: the links between free
/// blocks lie in the blocks, and what is handed out would lie among others that are seldom touched.
const PASSED_OVER: usize = 8;

fn prefer_awake(partial: &Partial) {
    let is_awake = |span: &Span| spans::has_block(span) && span.owner.load(Relaxed).addr() & Heap::AWAY == 0;
    for _ in 0..PASSED_OVER {
        match partial.first.get() {
            Some(span) if !is_awake(span) && !partial.is_only(span) => {
                partial.remove(span);
                partial.push(span);
            }
            _ => return,
        }
    }
}

/// Looks for spans of `class` with free blocks among those of threads that are gone, before the caller
/// asks the arena for another.
fn scavenge(heap: &'static Heap, class: usize) {
    if heap.is_cold.get() {
        // Those are of blocks that nobody called cold.
        return;
    }
    orphans::scavenge(heap);
    let Some(idle) = registry::pop_idle(heap.domain.get()) else { return };
    remote::drain(idle, None);
    if let Some(span) = idle.partial[class].first.get() {
        idle.partial[class].remove(span);
        // Exchanged, not stored: who tags it at this moment fails, or is seen by nobody.
        span.owner.swap(heap.as_owner(span.owner.load(Relaxed)), Release);
        heap.partial[class].push(span);
    }
    registry::put_idle(idle);
}
