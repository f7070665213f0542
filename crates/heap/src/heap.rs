//! A heap: what one thread allocates from and frees to without asking anybody.
//!
//! What it is: for each size class a bin of free blocks at hand, and the list of spans that have more; and
//! one list onto which other threads push what they free. What it is not: shared. All but `remote`, `user`
//! and `state` belong to the thread that uses the heap.
//!
//! Invariants: a bin holds blocks of the heap's own spans, and of others of its domain that its thread freed. A span with
//! a free block is in the list of its class, and in no other. Heaps lie in pinned memory and live for ever; a thread that
//! exits leaves its heap to another, with empty bins; a cold heap ([`crate::cold`]) keeps what is in its bins.

use crate::bin::{Bin, Block};
use crate::classes;
use crate::depth::Depths;
use crate::parcel::{List, Loose, Outbox};
use crate::quarantine::Quarantine;
use crate::span_cache::Front;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Cell};
use crate::worth::Worth;
use memfold_arena::{Domain, Span};

/// Spans of one class that have free blocks, first in first out: by the time a span is first, many of its
/// blocks came back.
pub(crate) struct Partial {
    pub(crate) first: Cell<Option<&'static Span>>,
    last: Cell<Option<&'static Span>>,
}

impl Partial {
    pub(crate) fn push(&self, span: &'static Span) {
        span.linked.set(true);
        span.next.set(None);
        span.prev.set(self.last.get());
        match self.last.get() {
            Some(last) => last.next.set(Some(span)),
            None => self.first.set(Some(span)),
        }
        self.last.set(Some(span));
    }

    pub(crate) fn remove(&self, span: &'static Span) {
        span.linked.set(false);
        match span.next.get() {
            Some(next) => next.prev.set(span.prev.get()),
            None => self.last.set(span.prev.get()),
        }
        match span.prev.get() {
            Some(prev) => prev.next.set(span.next.get()),
            None => self.first.set(span.next.get()),
        }
    }

    pub(crate) fn is_only(&self, span: &'static Span) -> bool {
        self.first.get().is_some_and(|s| s.is(span)) && span.next.get().is_none()
    }
}

/// The mark of a shelf that no span has.
pub(crate) const NO_SHELF: u8 = u8::MAX;

/// The mark of heaps of a domain, and of spans whose blocks all of these may keep.
pub(crate) fn shelf(domain: Domain) -> u8 {
    1 + domain as u8
}

/// Who has a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// A thread, named by `user`.
    InUse = 0,
    /// Nobody; it waits in the idle list.
    Idle = 1,
    /// A thread of the process that this one was forked from: see [`crate::orphans`].
    Orphan = 2,
}

/// A slot of a span that was taken for a call to come.
pub(crate) type Ahead = (&'static Span, u32);

/// A heap. The bins come first, so that the table's offsets are offsets from the heap, and so that an
/// all-zero heap is one without blocks.
#[repr(C, align(64))]
pub(crate) struct Heap {
    bins: [Bin; classes::COUNT],
    /// Offset in bytes of the bin for a request of up to 16 times the index.
    table: [Cell<u16>; classes::SMALL_STEPS],
    pub(crate) domain: Cell<Domain>,
    /// Whether its blocks are those that the program says it will seldom touch; see [`crate::cold`].
    pub(crate) is_cold: Cell<bool>,
    /// The mark of spans whose blocks the heap may keep though they are another's; [`NO_SHELF`] for none.
    pub(crate) shelf: Cell<u8>,
    pub(crate) depths: Depths,
    pub(crate) partial: [Partial; classes::COUNT],
    /// Empty spans kept for later.
    pub(crate) front: Front,
    /// Freed blocks that are not to serve again yet, where blocks are checked.
    pub(crate) quarantine: Quarantine,
    /// The slots that the next calls for each class get, where blocks are checked. They count as used.
    pub(crate) ahead: [Cell<Option<Ahead>>; classes::COUNT],
    /// Blocks taken from `remote` and not yet looked at.
    pub(crate) pending: Cell<*mut Block>,
    /// Others, taken before a fork, so that a child can believe them.
    pub(crate) aside: AtomicPtr<Block>,
    /// Whether it pays to gather by spans what is freed of other heaps'.
    pub(crate) worth: Worth,
    /// What is freed of other heaps' spans, by the addresses of the spans' records.
    pub(crate) loose: [Loose; 64],
    /// What is under way to other heaps, by their addresses.
    pub(crate) outboxes: [Outbox; 4],
    /// The next in the idle list.
    pub(crate) next_idle: Cell<*const Heap>,
    /// The next of all heaps; never changes once the heap is known.
    pub(crate) next_heap: Cell<*const Heap>,
    /// The last number drawn; see [`crate::checked`].
    pub(crate) draw: Cell<u64>,
    /// The generation of samples that it takes part in, 0 for none; see [`crate::sampling`].
    pub(crate) sampling: Cell<u32>,
    /// While it does: for each class, how many blocks may go into its bin until one is sampled.
    pub(crate) unsampled: [Cell<u32>; classes::COUNT],
    /// The last number that decided which block is.
    pub(crate) luck: Cell<u64>,
    pub(crate) state: AtomicU8,
    /// The thread that uses it (see [`memfold_sys::thread::pointer`]), 0 for none.
    pub(crate) user: AtomicUsize,
    /// The same thread by the kernel's number.
    pub(crate) user_tid: AtomicU32,
    /// How many read something of that thread's.
    pub(crate) readers: AtomicU32,
    /// What other threads freed.
    pub(crate) remote: List,
}

// SAFETY: the module's text says which thread may touch what; the hand-over of a heap from one thread to
// another goes through the lock of the idle list.
unsafe impl Sync for Heap {}

impl Heap {
    /// A heap without blocks that is never written.
    pub(crate) const fn sentinel() -> Heap {
        Heap {
            bins: [const { Bin::new() }; classes::COUNT],
            table: [const { Cell::new(0) }; classes::SMALL_STEPS],
            domain: Cell::new(Domain::Managed),
            is_cold: Cell::new(false),
            shelf: Cell::new(NO_SHELF),
            depths: Depths::new(),
            partial: [const { Partial { first: Cell::new(None), last: Cell::new(None) } }; classes::COUNT],
            front: Front::new(),
            quarantine: Quarantine::new(),
            ahead: [const { Cell::new(None) }; classes::COUNT],
            pending: Cell::new(core::ptr::null_mut()),
            aside: AtomicPtr::new(core::ptr::null_mut()),
            worth: Worth::new(),
            loose: [const { Loose::new() }; 64],
            outboxes: [const { Outbox::new() }; 4],
            next_idle: Cell::new(core::ptr::null()),
            next_heap: Cell::new(core::ptr::null()),
            draw: Cell::new(0),
            sampling: Cell::new(0),
            unsampled: [const { Cell::new(0) }; classes::COUNT],
            luck: Cell::new(0),
            state: AtomicU8::new(State::InUse as u8),
            user: AtomicUsize::new(0),
            user_tid: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            remote: List::new(),
        }
    }

    /// Makes an all-zero heap fit for use.
    pub(crate) fn set_up(&self, domain: Domain) {
        self.domain.set(domain);
        for (class, bin) in self.bins.iter().enumerate() {
            self.depths.reset(class);
            bin.set_room(self.depths.limit(class));
        }
        for (step, offset) in self.table.iter().enumerate() {
            let class = classes::of(step * classes::ALIGNMENT);
            offset.set((class * core::mem::size_of::<Bin>()) as u16);
        }
    }

    #[inline(always)]
    pub(crate) fn bin(&self, class: usize) -> &Bin {
        &self.bins[class]
    }

    /// The bin for the blocks of a span of this heap.
    #[inline(always)]
    pub(crate) fn bin_of(&self, span: &Span) -> &Bin {
        debug_assert!((span.class() as usize) < classes::COUNT);
        // SAFETY: a span that belongs to a heap has a class, and it never changes.
        unsafe { self.bins.get_unchecked(span.class() as usize) }
    }

    /// Whether a free block of the span may go into a bin of this heap. Both are looked at, without a branch between them: which of
    /// the two holds changes with the size of the block and, in programs that pass blocks on, with who freed it, and no processor can
    /// guess that.
    #[inline(always)]
    pub(crate) fn keeps(&self, span: &Span) -> bool {
        let shelves = (span.shelf.load(core::sync::atomic::Ordering::Relaxed) ^ self.shelf.get()) as isize;
        let owners = (span.owner.load(core::sync::atomic::Ordering::Relaxed).addr()
            ^ core::ptr::from_ref(self).addr()) as isize;
        // Less than zero if either is zero; the compiler makes branches of `||`, and of `|` as well.
        (shelves - 1) | owners.wrapping_sub(1) < 0
    }

    /// The bin for a request of `size` bytes, at most [`classes::SMALL`].
    #[inline(always)]
    pub(crate) fn bin_for_small(&self, size: usize) -> &Bin {
        let step = (size + classes::ALIGNMENT - 1) >> classes::ALIGNMENT.ilog2();
        // SAFETY: the callers keep `size` in range.
        let offset = unsafe { self.table.get_unchecked(step) }.get();
        // SAFETY: offsets are those of elements of `bins`, which starts at offset 0; in a sentinel all are
        // 0, the first bin.
        unsafe { &*(self as *const Heap).cast::<u8>().add(offset as usize).cast::<Bin>() }
    }

    /// Set in the owner's word of a span whose blocks are checked; heaps are aligned to more.
    pub(crate) const TAG: usize = 1;

    /// Set in the owner's word of a span of which blocks are sampled, so that none of its blocks is freed on the fast path.
    pub(crate) const SAMPLED: usize = 2;

    /// Set in the owner's word of a span of which pages went away from memory, likewise.
    pub(crate) const AWAY: usize = 4;

    /// All of them.
    const TAGS: usize = Heap::TAG | Heap::SAMPLED | Heap::AWAY;

    /// Whether a span belongs to this heap, whatever its tags.
    pub(crate) fn has(&self, span: &Span) -> bool {
        core::ptr::eq(Heap::owner_of(span), self)
    }

    /// The heap that a span belongs to.
    pub(crate) fn owner_of(span: &Span) -> *const Heap {
        span.owner.load(core::sync::atomic::Ordering::Acquire).map_addr(|addr| addr & !Heap::TAGS).cast()
    }

    /// What is to stand in a span's owner's word so that it belongs to this heap, with the tags of `as_before`.
    pub(crate) fn as_owner(&self, as_before: *mut u8) -> *mut u8 {
        core::ptr::from_ref(self)
            .cast_mut()
            .cast::<u8>()
            .map_addr(|addr| addr | as_before.addr() & Heap::TAGS)
    }

    /// Whether a span belongs to this heap, and has no tag.
    #[inline(always)]
    pub(crate) fn owns(&self, span: &Span) -> bool {
        core::ptr::eq(span.owner.load(core::sync::atomic::Ordering::Relaxed), (self as *const Heap).cast())
    }

    pub(crate) fn is(&self, other: &Heap) -> bool {
        core::ptr::eq(self, other)
    }
}

const _: () = assert!(classes::COUNT * core::mem::size_of::<Bin>() <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use memfold_arena::Kind;
    use memfold_sys::PAGE_SIZE;
    use std::boxed::Box;

    #[test]
    fn a_freed_block_is_kept_where_its_span_is_untagged_and_ours_or_on_our_shelf() {
        let span = memfold_arena::alloc(Domain::Pinned, 16, PAGE_SIZE, Kind::Blocks).expect("a span");
        let new_heap = || -> &'static Heap { Box::leak(Box::new(Heap::sentinel())) };
        let (heap, other) = (new_heap(), new_heap());
        let address = |heap: &Heap, tag: usize| core::ptr::from_ref(heap).addr() | tag;
        let tags = [Heap::TAG, Heap::SAMPLED, Heap::AWAY].map(|tag| (address(heap, tag), false));
        let owners = [(0, false), (address(other, 0), false), (address(heap, 0), true)];
        for (owner, is_own) in owners.into_iter().chain(tags) {
            for shelf in 0..=u8::MAX {
                for own_shelf in [1, 2, NO_SHELF - 1] {
                    span.owner.store(core::ptr::without_provenance_mut(owner), Relaxed);
                    span.shelf.store(shelf, Relaxed);
                    heap.shelf.set(own_shelf);
                    let kept = is_own || shelf == own_shelf;
                    assert_eq!(heap.keeps(span), kept, "{owner:x}, shelf {shelf} and {own_shelf}");
                }
            }
        }
        span.owner.store(core::ptr::null_mut(), Relaxed);
        memfold_arena::free(span, 0);
    }
}
