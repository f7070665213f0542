//! Frees from other threads, without a lock.
//!
//! What it is: each heap has a list onto which any thread pushes blocks ([`crate::parcel`]). A thread gathers what it frees of a span of
//! another heap, and what it gathered for that heap, and pushes many blocks at once. What it is not: urgent; the user of the heap looks
//! when a bin runs dry, and sends what it gathered before it asks others for memory.
//!
//! Invariants: a block in a parcel, or gathered for one, counts as used in its span, so the span stays. A span may
//! change hands while a block is under way to the old hands, which then send it on.

use crate::bin::{Block, Run};
use crate::heap::Heap;
use crate::parcel::{open, List, Loose, Outbox};
use crate::sync::Ordering::*;
use crate::{slots, spans};
use core::mem::size_of;
use memfold_arena::Span;

/// At least so many blocks are looked at in one go, if there are; then it is enough if the class that is
/// asked for has some.
const BATCH: u32 = 64;

/// Sends a free block to the heap that its span belongs to.
///
/// # Safety
/// The block is free, in no list, and of a span that belongs to a heap.
#[cold]
pub(crate) unsafe fn send(span: &Span, block: *mut Block) {
    // SAFETY: the caller's contract.
    unsafe { send_run(span, Run::of_one(block)) };
}

/// Sends free blocks to the heap that their span belongs to.
///
/// # Safety
/// The blocks are free, in no list, and of the span, which belongs to a heap; one block where links are encoded.
unsafe fn send_run(span: &Span, run: Run) {
    // SAFETY: the caller's contract; heaps live for ever.
    unsafe { (*Heap::owner_of(span)).remote.push_run(run, span.block_size()) };
}

/// Gathers a free block for the heap that its span belongs to, and sends what is gathered for it when it is enough.
///
/// # Safety
/// As for [`send`]; the calling thread uses `heap`, which is no sentinel.
#[inline(always)]
pub(crate) unsafe fn gather(heap: &'static Heap, span: &'static Span, block: *mut Block) {
    if !heap.worth.try_block() {
        // SAFETY: the caller's contract.
        return unsafe { put_alone(heap, span, block) };
    }
    let loose = &heap.loose[core::ptr::from_ref(span) as usize / size_of::<Span>() % heap.loose.len()];
    // SAFETY: the caller's contract.
    if !unsafe { loose.add(span, block) } {
        begin(heap, loose, span, block);
    }
    if loose.is_full() {
        end(heap, loose);
    }
}

/// Begins to gather blocks of a span in place of those of another.
#[inline(never)]
fn begin(heap: &Heap, loose: &Loose, span: &'static Span, block: *mut Block) {
    end(heap, loose);
    loose.begin(list_of(span), span, block);
}

/// Ends to gather blocks of a span, and to look for such at all for a while where it does not pay.
fn end(heap: &Heap, loose: &Loose) {
    let count = loose.count();
    put_in_outbox(heap, loose);
    if count > 0 && heap.worth.note(count) {
        heap.loose.iter().for_each(|loose| put_in_outbox(heap, loose));
    }
}

/// Puts a block into the outbox for the heap that its span belongs to, without looking for others of the span.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
unsafe fn put_alone(heap: &Heap, span: &Span, block: *mut Block) {
    let to = list_of(span);
    // SAFETY: the caller's contract; lists of heaps live for ever.
    unsafe { outbox_for(heap, to).put(to, Run::of_one(block), span.block_size()) };
}

/// The list of the heap that a span belongs to.
#[inline(always)]
fn list_of(span: &Span) -> *const List {
    // SAFETY: owners are heaps, which live for ever.
    unsafe { &raw const (*Heap::owner_of(span)).remote }
}

/// The outbox for what goes to the heap with this list.
#[inline(always)]
fn outbox_for(heap: &Heap, to: *const List) -> &Outbox {
    &heap.outboxes[to as usize / size_of::<Heap>() % heap.outboxes.len()]
}

/// Puts what was gathered of a span into the outbox for the heap that it belonged to.
fn put_in_outbox(heap: &Heap, loose: &Loose) {
    // SAFETY: lists of heaps live for ever.
    unsafe { loose.put(outbox_for(heap, loose.to())) };
}

/// Sends all that the user of the heap gathered for others.
pub(crate) fn dispatch(heap: &Heap) {
    heap.loose.iter().for_each(|loose| put_in_outbox(heap, loose));
    heap.outboxes.iter().for_each(Outbox::dispatch);
}

/// Whether somebody sent something to the heap.
pub(crate) fn is_waiting(heap: &Heap) -> bool {
    !heap.pending.get().is_null() || !heap.remote.is_empty() || !heap.aside.load(Relaxed).is_null()
}

/// Takes what others sent, for the heap's user to look at later: a child that is forked has it, too. Also where the user was interrupted in
/// the middle of anything.
pub(crate) fn put_aside(heap: &Heap) {
    if heap.aside.load(Relaxed).is_null() {
        heap.aside.store(heap.remote.take_all(), Relaxed);
    }
}

/// What was put aside, or else what is on the list: the first parcel, or null.
fn take(heap: &Heap) -> *mut Block {
    match heap.aside.load(Relaxed) {
        first if first.is_null() => heap.remote.take_all(),
        _ => heap.aside.swap(core::ptr::null_mut(), Relaxed),
    }
}

/// Takes blocks that others sent: into the bins that have room, where they count as used as they did on the list, else back
/// to their spans. With a `wanted` class only until there is some of it, without all of them, and to their spans.
pub(crate) fn drain(heap: &'static Heap, wanted: Option<usize>) {
    let mut seen = 0;
    loop {
        let parcel = match heap.pending.get() {
            parcel if !parcel.is_null() => parcel,
            _ => take(heap),
        };
        if parcel.is_null() {
            return;
        }
        // SAFETY: the parcel was just taken off the list, and what is in it is free and in no list.
        let next = unsafe {
            open(parcel, |run| {
                seen += run.count;
                receive(heap, wanted.is_some(), run);
            })
        };
        heap.pending.set(next);
        let is_there = |class: usize| heap.bin(class).has_some() || heap.partial[class].first.get().is_some();
        if seen >= BATCH && wanted.is_some_and(is_there) {
            return;
        }
    }
}

/// Puts blocks that were sent where they can be taken from, `into_bins` if one has room.
///
/// # Safety
/// The blocks are free and in no list.
#[inline]
pub(crate) unsafe fn receive(heap: &'static Heap, into_bins: bool, run: Run) {
    let Some(span) = memfold_arena::lookup(run.first as usize) else { return };
    if into_bins && heap.owns(span) && heap.bin_of(span).has_room_for(run.count) {
        // SAFETY: the caller's contract; the blocks' span is this heap's and of this bin's class.
        unsafe { heap.bin_of(span).push_run(run) };
    } else if heap.has(span) {
        if slots::is_checked(span) {
            slots::arrive(span, run.first as usize);
        }
        // SAFETY: the caller's contract; the span is this heap's.
        unsafe { spans::give_run(heap, span, run) };
    } else {
        // SAFETY: the caller's contract; the span went to another heap.
        unsafe { send_run(span, run) };
    }
}
