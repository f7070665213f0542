//! Frees from other threads, without a lock.
//!
//! What it is: each heap has a list onto which any thread pushes blocks ([`crate::parcel`]). A thread gathers what it frees for another
//! heap and pushes several blocks at once. What it is not: urgent; the user of the heap looks when a bin runs dry, and sends what it
//! gathered by then.
//!
//! Invariants: a block in a parcel, or gathered for one, counts as used in its span, so the span stays. A span may
//! change hands while a block is under way to the old hands, which then send it on.

use crate::bin::Block;
use crate::heap::Heap;
use crate::parcel::{unpack, Outbox};
use crate::{slots, spans};
use core::mem::size_of;
use memfold_arena::Span;

/// At least so many blocks are looked at in one go, if there are; then it is enough if the class that is
/// asked for has some.
const BATCH: usize = 64;

/// Sends a free block to the heap that its span belongs to.
///
/// # Safety
/// The block is free, in no list, and of a span that belongs to a heap.
#[cold]
pub(crate) unsafe fn send(span: &Span, block: *mut Block) {
    // SAFETY: the caller's contract; heaps live for ever.
    unsafe { (*Heap::owner_of(span)).remote.push_one(block) };
}

/// Gathers a free block for the heap that its span belongs to, and sends what is gathered for it when it is enough.
///
/// # Safety
/// As for [`send`]; the calling thread uses `heap`, which is no sentinel.
pub(crate) unsafe fn gather(heap: &'static Heap, span: &Span, block: *mut Block) {
    let owner = Heap::owner_of(span);
    let outbox = &heap.outboxes[owner as usize / size_of::<Heap>() % heap.outboxes.len()];
    // SAFETY: the caller's contract; owners are heaps, which live for ever.
    unsafe { outbox.gather(&raw const (*owner).remote, block, span.block_size()) };
}

/// Sends all that the user of the heap gathered for others.
pub(crate) fn dispatch(heap: &Heap) {
    heap.outboxes.iter().for_each(Outbox::dispatch);
}

/// Whether somebody sent something to the heap.
pub(crate) fn is_waiting(heap: &Heap) -> bool {
    !heap.pending.get().is_null() || !heap.remote.is_empty()
}

/// Takes blocks that others sent: into the bins that have room, where they count as used as they did on the list, else back
/// to their spans. With a `wanted` class only until there is some of it, without all of them, and to their spans.
pub(crate) fn drain(heap: &'static Heap, wanted: Option<usize>) {
    let mut seen = 0;
    loop {
        let parcel = match heap.pending.get() {
            parcel if !parcel.is_null() => parcel,
            _ => heap.remote.take_all(),
        };
        if parcel.is_null() {
            return;
        }
        // SAFETY: the parcel was just taken off the list.
        let next = unsafe {
            unpack(parcel, |block| {
                seen += 1;
                receive(heap, wanted.is_some(), block)
            })
        };
        heap.pending.set(next);
        let is_there = |class: usize| heap.bin(class).has_some() || heap.partial[class].first.get().is_some();
        if seen >= BATCH && wanted.is_some_and(is_there) {
            return;
        }
    }
}

/// Puts a block that was sent where it can be taken from, `into_bins` if one has room.
///
/// # Safety
/// The block is free and in no list.
#[inline]
unsafe fn receive(heap: &'static Heap, into_bins: bool, block: *mut Block) {
    let Some(span) = memfold_arena::lookup(block as usize) else { return };
    if into_bins && heap.owns(span) && heap.bin_of(span).has_room() {
        // SAFETY: the caller's contract; the block's span is this heap's and of this bin's class.
        unsafe { heap.bin_of(span).push(block) };
    } else if heap.has(span) {
        if slots::is_checked(span) {
            slots::arrive(span, block as usize);
        }
        // SAFETY: the caller's contract; the span is this heap's.
        unsafe { spans::give(heap, span, block) };
    } else {
        // SAFETY: the caller's contract; the span went to another heap.
        unsafe { send(span, block) };
    }
}
