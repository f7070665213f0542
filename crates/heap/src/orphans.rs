//! The heaps of threads that a forked child does not have.
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

use crate::bin::Run;
use crate::heap::{Heap, State};
use crate::parcel::open;
use crate::sync::{AtomicUsize, Ordering::*};
use crate::{dormant, misuse, registry, remote, slots};
use memfold_arena::Span;

/// How many heaps are orphans.
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

/// Makes an orphan of a heap that nobody uses from now on.
pub(crate) fn make(heap: &Heap) {
    heap.user.store(0, Relaxed);
    heap.user_tid.store(0, Relaxed);
    heap.state.store(State::Orphan as u8, Relaxed);
    ORPHANS.fetch_add(1, Relaxed);
}

/// Takes over blocks that were freed in this process and belong to orphans.
pub(crate) fn scavenge(heap: &'static Heap) {
    if ORPHANS.load(Relaxed) == 0 {
        return;
    }
    registry::for_each(|orphan| {
        let is_orphan = orphan.state.load(Relaxed) == State::Orphan as u8;
        if !is_orphan || orphan.domain.get() != heap.domain.get() || orphan.remote.is_empty() {
            return;
        }
        let mut parcel = orphan.remote.take_all();
        while !parcel.is_null() {
            // SAFETY: the parcel, and with it its blocks, was just taken off the list.
            parcel = unsafe {
                open(parcel, |run| {
                    // Once blocks are checked, those from before serve no more: nothing says which of their spans' slots are free.
                    let serves = |span: &&Span| slots::is_checked(span) == misuse::is_on();
                    if let Some(span) = memfold_arena::lookup(run.first as usize).filter(serves) {
                        take_over(heap, orphan, span, run);
                    }
                })
            };
        }
    });
}

/// Makes `heap` the owner of the blocks' span if an orphan was, and returns the blocks to it.
///
/// # Safety
/// The blocks are free, in no list, and of `span`.
unsafe fn take_over(heap: &'static Heap, orphan: &'static Heap, span: &'static Span, run: Run) {
    let from = span.owner.load(Relaxed);
    if orphan.has(span) && span.owner.compare_exchange(from, heap.as_owner(from), AcqRel, Acquire).is_ok() {
        // All that is not known to be free counts as used.
        if slots::is_checked(span) {
            slots::open_none(span);
        } else {
            dormant::forget(span);
        }
        span.free.set(core::ptr::null_mut());
        span.free_count.set(0);
        span.carved.store(span.capacity.get(), Relaxed);
        span.set_used(span.capacity.get());
        span.linked.set(false);
    }
    // SAFETY: the caller's contract.
    unsafe { remote::receive(heap, false, run) };
}
