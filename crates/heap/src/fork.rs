//! The allocator across `fork`.
//!
//! What it is: the handlers that keep locks and records at rest while the process is copied, and what the
//! child does with the heaps of threads that it does not have.
//!
//! The kernel copies a process page by page while the other threads run on. So the child sees their heaps
//! as they never were: a bin and the block that it points to may be copied at different moments. Nothing
//! that another thread changes without a lock can be believed: its bins, its lists, the links in its free
//! blocks, and remote lists that were being pushed to. What the child *can* believe is what changes under
//! the locks (which pages are spans), what never changes while a span lives (its blocks' size, its owner),
//! and every block that the program itself frees in the child.
//!
//! So the child calls those heaps orphans and uses no free block of theirs. Blocks that it frees gather on
//! the orphan's remote list; when a thread needs memory, it takes that list, makes itself the owner of
//! the spans, and has exactly those blocks to reuse. Blocks that were free in another thread's heap at the
//! moment of the fork are not used again in the child.

use crate::heap::{Block, Heap, State};
use crate::sync::{AtomicUsize, Ordering::*};
use crate::{registry, remote, spans, tls};
use memfold_arena::Span;

/// How many heaps are orphans.
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

/// The thread that holds the locks around its `fork`, 0 for none.
static HOLDER: AtomicUsize = AtomicUsize::new(0);

/// Called in the thread that forks, before `fork`: takes every lock of heap and arena.
///
/// Nothing may allocate or free between this and [`fork_parent`] or [`fork_child`]. No lock of the allocator
/// is ever held while an [`memfold_arena::Hooks`] function runs, so it does not matter whether the pager takes its
/// own locks before or after.
pub fn fork_prepare() {
    let heap = tls::get();
    if !registry::is_sentinel(heap) {
        remote::drain(heap, None);
    }
    registry::hold();
    memfold_arena::fork_prepare();
    HOLDER.store(tls::thread(), Relaxed);
}

/// Called in the parent after `fork`, whether it worked or not. Does nothing in a thread that did not call
/// [`fork_prepare`].
pub fn fork_parent() {
    release();
}

/// Called in the child, before anything in it allocates or frees. Does nothing in a thread that did not call
/// [`fork_prepare`] before the fork.
pub fn fork_child() {
    let me = tls::thread();
    if HOLDER.load(Relaxed) != me {
        return;
    }
    registry::for_each(|heap| {
        // What was sent between the preparation and the copy: its links cannot be believed.
        heap.remote.0.store(core::ptr::null_mut(), Relaxed);
        let in_use = heap.state.load(Relaxed) == State::InUse as u8;
        if in_use && heap.user.load(Relaxed) == me {
            // The same thread pointer, but another number.
            registry::hand_over(heap);
        } else if in_use {
            heap.state.store(State::Orphan as u8, Relaxed);
            heap.user.store(0, Relaxed);
            count_orphan();
        }
    });
    release();
}

fn release() {
    if HOLDER.load(Relaxed) != tls::thread() {
        return;
    }
    HOLDER.store(0, Relaxed);
    // SAFETY: this thread, or the one that it is a copy of, took the locks in `fork_prepare`.
    unsafe {
        memfold_arena::fork_release();
        registry::let_go();
    }
}

/// Counts a heap more that is an orphan.
pub(crate) fn count_orphan() {
    ORPHANS.fetch_add(1, Relaxed);
}

/// Takes over blocks that were freed in this process and belong to orphans.
pub(crate) fn scavenge(heap: &'static Heap) {
    if ORPHANS.load(Relaxed) == 0 {
        return;
    }
    registry::for_each(|orphan| {
        let is_orphan = orphan.state.load(Relaxed) == State::Orphan as u8;
        if !is_orphan || orphan.domain.get() != heap.domain.get() {
            return;
        }
        let mut parcel = orphan.remote.0.swap(core::ptr::null_mut(), Acquire);
        while !parcel.is_null() {
            // SAFETY: the parcel, and with it its blocks, was just taken off the list.
            parcel = unsafe {
                remote::unpack(parcel, |block| {
                    if let Some(span) = memfold_arena::lookup(block as usize) {
                        take_over(heap, orphan, span, block);
                    }
                })
            };
        }
    });
}

/// Makes `heap` the owner of the block's span if an orphan was, and returns the block to its span.
///
/// # Safety
/// The block is free, in no list, and of `span`.
unsafe fn take_over(heap: &'static Heap, orphan: &'static Heap, span: &'static Span, block: *mut Block) {
    let from = span.owner.load(Relaxed);
    if orphan.has(span) && span.owner.compare_exchange(from, heap.as_owner(from), AcqRel, Acquire).is_ok() {
        // All that is not known to be free counts as used.
        span.free.set(core::ptr::null_mut());
        span.free_count.set(0);
        span.carved.store(span.capacity.get(), Relaxed);
        span.set_used(span.capacity.get());
        span.linked.set(false);
    }
    if heap.has(span) {
        // SAFETY: the caller's contract, and the span is this heap's.
        unsafe { spans::give(heap, span, block) };
    } else {
        // SAFETY: the caller's contract; the span belongs to a heap, if not to this one.
        unsafe { remote::send(span, block) };
    }
}
