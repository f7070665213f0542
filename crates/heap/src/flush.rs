//! Where blocks go when a bin or a quarantine is full, or a thread ends: back to the spans they are of, and to the heaps those
//! belong to.

use crate::bin::Block;
use crate::heap::Heap;
use crate::{classes, remote, slots, spans};
use memfold_arena::{settings, Knob, Span};

/// Makes room in a full bin: more of it where it ran out before, or else, for a block of the heap's own, by taking what it has too many
/// of, the longest free, back to the spans. Whether there is room now.
#[cold]
pub(crate) fn make_room(heap: &'static Heap, class: usize, for_own: bool) -> bool {
    let more = heap.depths.raise(class);
    if more > 0 {
        heap.bin(class).add_room(more);
    } else if for_own {
        let limit = heap.depths.limit(class);
        give_list(heap, heap.bin(class).cut(limit / 2, limit));
    }
    more > 0 || for_own
}

/// Empties every bin, sends what belongs to others, and gives every empty span back.
pub(crate) fn flush_all(heap: &'static Heap) {
    end_quarantine_beyond(heap, 0);
    choose_none(heap);
    for class in 0..classes::COUNT {
        empty(heap, class, 0);
        narrow(heap, class);
        let mut span = heap.partial[class].first.get();
        while let Some(this) = span {
            span = this.next.get();
            if spans::is_empty(this) {
                spans::retire(heap, this);
            }
        }
    }
    heap.front.empty(spans::free_span);
    remote::dispatch(heap);
}

/// Has a freed block of a checked span wait until much else was freed, and those serve again that have waited for so long.
///
/// # Safety
/// The block is free, in no list, and of the span; the calling thread uses `heap`, which is no sentinel.
pub(crate) unsafe fn delay(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    if !heap.quarantine.add(span, block) {
        // SAFETY: the caller's contract.
        return unsafe { serve_again(heap, span, block) };
    }
    let limit = settings::get(Knob::Quarantine) as usize;
    if heap.quarantine.is_full(limit) {
        end_quarantine_beyond(heap, limit);
    }
}

#[inline(never)]
fn end_quarantine_beyond(heap: &'static Heap, limit: usize) {
    while let Some((span, block)) = heap.quarantine.take_beyond(limit) {
        if limit == 0 {
            slots::must_be_clean(span, block as usize);
        }
        // SAFETY: blocks in a quarantine are free, in no list, and of the span that they went in with.
        unsafe { serve_again(heap, span, block) };
    }
}

/// Gives a freed block of a checked span back to the heap that the span belongs to.
///
/// # Safety
/// The block is free, in no list, and of the span.
unsafe fn serve_again(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    if heap.has(span) {
        // SAFETY: the caller's contract, and the span is this heap's.
        unsafe { spans::give(heap, span, block) };
    } else if slots::depart(span, block as usize) {
        // SAFETY: the caller's contract; the span's owner is a heap.
        unsafe { remote::send(span, block) };
    }
}

/// Gives the slots that were chosen for the next calls back to their spans.
fn choose_none(heap: &'static Heap) {
    for ahead in &heap.ahead {
        if let Some((span, slot)) = ahead.take() {
            // SAFETY: the slot is free and in no list, and the span this heap's: one with a slot that counts as used goes nowhere.
            unsafe { spans::give(heap, span, slots::block_at(span, slot as usize)) };
        }
    }
}

/// Takes all but `keep` blocks of a bin back to the spans. Those were never handed out.
pub(crate) fn empty(heap: &'static Heap, class: usize, keep: i32) {
    let limit = heap.depths.limit(class);
    let surplus = heap.bin(class).count(limit) - keep;
    if surplus > 0 {
        let unsampled = &heap.unsampled[class];
        unsampled.set(unsampled.get().saturating_add(surplus as u32));
        give_list(heap, heap.bin(class).cut(keep, limit));
    }
}

/// Makes the limit of an empty bin what it is at first.
fn narrow(heap: &'static Heap, class: usize) {
    let before = heap.depths.limit(class);
    heap.depths.reset(class);
    heap.bin(class).add_room(heap.depths.limit(class) - before);
}

/// Takes a free block of one of the heap's own spans: into the bin, if there is room, else back to the span.
///
/// # Safety
/// The block is free, in no list, and of the span, which is the heap's and not checked.
pub(crate) unsafe fn put(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    let (class, bin) = (span.class() as usize, heap.bin_of(span));
    let unsampled = &heap.unsampled[class];
    let is_let_in = match heap.sampling.get() {
        0 => bin.has_room(),
        // What goes in comes out without being counted.
        _ => unsampled.get() > 0 && bin.count(heap.depths.limit(class)) < heap.depths.limit(class),
    };
    // SAFETY: the caller's contract.
    unsafe {
        if is_let_in {
            unsampled.set(unsampled.get().saturating_sub(1));
            bin.push(block);
        } else {
            spans::give(heap, span, block);
        }
    }
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
