//! Frees from other threads, without a lock.
//!
//! What it is: each heap has a list onto which any thread pushes blocks by compare-and-swap and from which
//! its user takes all at once (a Treiber stack, IBM RJ 5118, 1986; taking all at once avoids the ABA
//! problem). A thread gathers what it frees for another heap and pushes several blocks at once. What it is not: urgent;
//! the user of the heap looks when a bin runs dry, and sends what it gathered by then.
//!
//! Invariants: a block on such a list, or gathered for one, counts as used in its span, so the span stays. A span may
//! change hands while a block is under way to the old hands, which then send it on.

use crate::heap::{Block, Heap};
use crate::sync::Cell;
use crate::{links, spans};
use arena::Span;
use core::sync::atomic::Ordering::*;

/// At least so many blocks are looked at in one go, if there are; then it is enough if the class that is
/// asked for has some.
const BATCH: usize = 64;

/// Blocks gathered for another heap: at most so many, and fewer of those above [`GATHERED_LEAST`] bytes.
const GATHERED: i32 = 32;
const GATHERED_LEAST: u32 = 512;

/// What the user of a heap freed for one other heap and did not send yet.
pub(crate) struct Outbox {
    to: Cell<*const Heap>,
    first: Cell<*mut Block>,
    last: Cell<*mut Block>,
    /// How much more it may take, in units of [`GATHERED_LEAST`] bytes.
    room: Cell<i32>,
}

impl Outbox {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> Outbox {
        Outbox {
            to: Cell::new(core::ptr::null()),
            first: Cell::new(core::ptr::null_mut()),
            last: Cell::new(core::ptr::null_mut()),
            room: Cell::new(0),
        }
    }

    fn dispatch(&self) {
        let first = self.first.replace(core::ptr::null_mut());
        if !first.is_null() {
            // SAFETY: gathered blocks are free and linked, and owners are heaps, which live for ever.
            unsafe { push(self.to.get(), first, self.last.get()) };
        }
    }
}

/// Puts free blocks, linked from `first` to `last`, onto a heap's list.
///
/// # Safety
/// The blocks are free and in no other list; `owner` is a heap.
unsafe fn push(owner: *const Heap, first: *mut Block, last: *mut Block) {
    // SAFETY: heaps live for ever.
    let list = unsafe { &(*owner).remote.0 };
    let mut head = list.load(Relaxed);
    loop {
        // SAFETY: a free block is ours to write until it is on the list.
        unsafe { links::set(last, head) };
        match list.compare_exchange_weak(head, first, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Sends a free block to the heap that its span belongs to.
///
/// # Safety
/// The block is free, in no list, and of a span that belongs to a heap.
#[cold]
pub(crate) unsafe fn send(span: &Span, block: *mut Block) {
    // SAFETY: the caller's contract.
    unsafe { push(Heap::owner_of(span), block, block) };
}

/// Gathers a free block for the heap that its span belongs to, and sends what is gathered for it when it is enough.
///
/// # Safety
/// As for [`send`]; the calling thread uses `heap`, which is no sentinel.
pub(crate) unsafe fn gather(heap: &'static Heap, span: &Span, block: *mut Block) {
    let owner = Heap::owner_of(span);
    let outbox = &heap.outboxes[owner as usize / core::mem::size_of::<Heap>() % heap.outboxes.len()];
    if !core::ptr::eq(outbox.to.get(), owner) {
        outbox.dispatch();
        outbox.to.set(owner);
    }
    let first = outbox.first.get();
    if first.is_null() {
        outbox.last.set(block);
        outbox.room.set(GATHERED);
    }
    // SAFETY: a free block is ours to write.
    unsafe { links::set(block, first) };
    outbox.first.set(block);
    outbox.room.set(outbox.room.get() - span.block_size().div_ceil(GATHERED_LEAST) as i32);
    if outbox.room.get() <= 0 {
        outbox.dispatch();
    }
}

/// Sends all that the user of the heap gathered for others.
pub(crate) fn dispatch(heap: &Heap) {
    heap.outboxes.iter().for_each(Outbox::dispatch);
}

/// Whether somebody sent something to the heap.
pub(crate) fn is_waiting(heap: &Heap) -> bool {
    !heap.pending.get().is_null() || !heap.remote.0.load(Relaxed).is_null()
}

/// Takes blocks that others sent: into the bins that have room, where they count as used as they did on the list, else back
/// to their spans. With a `wanted` class only until there is some of it, without all of them, and to their spans.
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
            if wanted.is_some() && heap.owns(span) && heap.bin_of(span).has_room() {
                // SAFETY: the block was just taken off the list, and its span is this heap's and of this bin's class.
                let _ = unsafe { heap.bin_of(span).push(block) };
            } else if heap.has(span) {
                // SAFETY: the block was just taken off the list, and its span is this heap's.
                unsafe { spans::give(heap, span, block) };
            } else {
                // SAFETY: the block was just taken off the list; its span went to another heap.
                unsafe { send(span, block) };
            }
        }
        seen += 1;
        let is_there = |class: usize| heap.bin(class).has_some() || heap.partial[class].first.get().is_some();
        if seen >= BATCH && wanted.is_some_and(is_there) {
            return;
        }
    }
}
