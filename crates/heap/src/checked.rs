//! What a call does where blocks are checked: blocks that are freed twice, missed, or written to late, end the program.
//!
//! What it is: allocation from slots that lie anywhere in their span ([`crate::slots`]), frees that look at the block and then have
//! it wait ([`crate::flush::delay`]), blocks of no bytes that cannot be touched ([`crate::voids`]), and large ones in mappings of their own
//! between pages that cannot be ([`crate::large`]). What it is not: free, or on any fast path. A checked span's owner is tagged, so that no
//! free of its blocks looks like a local one, and bins stay empty, so that no allocation is at hand.
//!
//! Invariants: blocks from before [`harden`] are not checked, but for whether one starts where it is said to.

use crate::bin::Block;
use crate::heap::{Ahead, Heap};
use crate::misuse::{self, defect, Report};
use crate::{
    classes, flush, large, links, orphans, refill, registry, remote, sampling, slots, spans, tls, voids,
};
use memfold_arena::{Domain, Span};

/// From now on blocks are checked. `report` is told of a defect before the program ends; `key` must be hard to guess and
/// not 0. To be called once, while the process has one thread.
pub fn harden(key: usize, report: Report) {
    misuse::report_to(report);
    links::set_key(key);
    let heap = tls::get();
    if !registry::is_sentinel(heap) {
        // The lists of this heap are readable for all; nobody takes from them any more.
        orphans::make(heap);
        tls::set(&tls::EMPTY);
    }
    // Nor from those of threads that are gone.
    for domain in [Domain::Managed, Domain::Pinned] {
        while let Some(idle) = registry::pop_idle(domain) {
            orphans::make(idle);
        }
    }
    while let Some(cold) = registry::pop_cold() {
        orphans::make(cold);
    }
    memfold_arena::start_afresh();
    misuse::turn_on();
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

/// A block of `size` bytes (at most [`classes::LARGEST`]) at a multiple of `align` (a power of two, at most a page), and whether it is
/// known to be all zero; null if the kernel gives no more memory.
pub(crate) fn alloc(heap: &'static Heap, size: usize, align: usize) -> (*mut u8, bool) {
    if size == 0 && align <= voids::STEP {
        return (voids::alloc(draw(heap)), true);
    }
    let room = (size + slots::TAIL).next_multiple_of(align);
    if room > classes::LARGEST {
        let (block, zero) = large::alloc(heap.domain.get(), size, align);
        sampling::consider(block);
        return (block, zero);
    }
    let class = classes::of(room);
    let (span, slot) = match heap.ahead[class].take() {
        Some(chosen) => chosen,
        None => match refill::with_room(heap, class) {
            Some(span) => choose(heap, span),
            None => return (core::ptr::null_mut(), false),
        },
    };
    choose_ahead(heap, class);
    let block = slots::hand_out(span, slot as usize, size);
    if sampling::is_due(heap, class) {
        sampling::take(heap, span, block as usize, span.block_size() as usize);
    }
    (block, span.block_size() as usize <= slots::WHOLE)
}

/// Takes a slot of a span that has room, which one nobody can foretell.
#[inline]
fn choose(heap: &'static Heap, span: &'static Span) -> Ahead {
    let slot = slots::choose(span, draw(heap));
    spans::unlink_if_full(heap, span);
    (span, slot as u32)
}

/// Chooses the slot that the next call for a class gets, if one is at hand, so that it is on its way from memory until then: a slot that was
/// free for long lies in no cache.
#[inline]
fn choose_ahead(heap: &'static Heap, class: usize) {
    let Some(span) = heap.partial[class].first.get() else { return };
    let chosen = choose(heap, span);
    slots::fetch_ahead(chosen.0, chosen.1 as usize);
    heap.ahead[class].set(Some(chosen));
}

/// Frees a block of a span that is checked, or of one from before.
///
/// # Safety
/// The span's owner is a heap, or it is one of blocks of no bytes.
pub(crate) unsafe fn free(span: &'static Span, block: *mut Block) {
    if voids::is_void(span) {
        return voids::free(span, block as usize);
    }
    // SAFETY: the caller's contract.
    unsafe { free_of_heap(span, block) };
    registry::tidy_if_much_is_left();
}

/// The same, where the span's owner is a heap.
unsafe fn free_of_heap(span: &'static Span, block: *mut Block) {
    let at = block as usize;
    let heap = registry::heap_to_free_with();
    if !slots::is_checked(span) {
        if !(at - span.start()).is_multiple_of(span.block_size() as usize) {
            defect("an address that is not the start of a block was freed", at, span.block_size() as usize);
        }
        // SAFETY: the caller's contract.
        return unsafe {
            match heap {
                Some(heap) => remote::gather(heap, span, block),
                None => remote::send(span, block),
            }
        };
    }
    slots::take_back(span, at, heap.is_some_and(|heap| heap.has(span)));
    match heap {
        // SAFETY: the block was the program's, and now it is ours.
        Some(heap) => unsafe { flush::delay(heap, span, block) },
        None if slots::depart(span, at) => {
            // SAFETY: as above; the span's owner is a heap.
            unsafe { remote::send(span, block) };
        }
        None => {}
    }
}

/// For the end of a program: looks once more at what the calling thread freed last.
pub fn look_back() {
    let heap = tls::get();
    if misuse::is_on() && !registry::is_sentinel(heap) {
        flush::flush_all(heap);
    }
}

/// How many bytes of a block of a checked span the program asked for; the program ends if the block is not its own.
pub(crate) fn usable_size(span: &Span, block: usize) -> usize {
    match voids::is_void(span) {
        true => voids::size(span, block),
        false => slots::size(span, block),
    }
}

/// Whether a block of a checked span has now `size` bytes, without having moved.
pub(crate) fn resize(span: &Span, block: usize, size: usize) -> bool {
    let room = span.block_size() as usize;
    let fits = !voids::is_void(span) && size + slots::TAIL <= room && size * 2 >= room;
    if fits {
        slots::resize(span, block, size);
    }
    fits
}
