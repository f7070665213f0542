//! Where blocks go when a bin is full, or a thread ends: back to the spans they are of, and to the heaps those belong to.

use crate::bin::Block;
use crate::heap::Heap;
use crate::{classes, remote, spans};

/// Takes what a full bin has too many of, the longest free, back to the spans.
#[cold]
pub(crate) fn flush(heap: &'static Heap, class: usize) {
    let limit = classes::limit(class);
    give_list(heap, heap.bin(class).cut(limit / 2, limit));
}

/// Empties every bin, sends what belongs to others, and gives every empty span back.
pub(crate) fn flush_all(heap: &'static Heap) {
    for class in 0..classes::COUNT {
        give_list(heap, heap.bin(class).cut(0, classes::limit(class)));
        let mut span = heap.partial[class].first.get();
        while let Some(this) = span {
            span = this.next.get();
            if this.used() == 0 {
                spans::retire(heap, this);
            }
        }
    }
    heap.front.empty(spans::free_span);
    remote::dispatch(heap);
}

fn give_list(heap: &'static Heap, mut block: *mut Block) {
    while !block.is_null() {
        // SAFETY: blocks in a bin are free, mapped, and hold a link.
        let next = unsafe { (*block).next.get() };
        if let Some(span) = memfold_arena::lookup(block as usize) {
            // SAFETY: bins hold free blocks, and this one was just taken out.
            unsafe {
                match heap.has(span) {
                    true => spans::give(heap, span, block),
                    false => remote::gather(heap, span, block),
                }
            }
        }
        block = next;
    }
}
