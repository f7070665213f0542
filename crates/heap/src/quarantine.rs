//! Freed blocks that are not to serve again yet: a ring of the last ones, first in first out.
//!
//! What it is: for checked blocks, so that an address does not come back soon, and who frees or writes to it late meets no other
//! block. It holds so many bytes, or [`MOST`] blocks, and lies out of line. What it is not: shared, or a judgement of where a block goes
//! then; that is [`crate::flush`]'s.

use crate::bin::Block;
use crate::sync::Cell;
use core::mem::size_of;
use memfold_arena::Span;

/// The most blocks in it.
const MOST: usize = 2048;

/// Blocks are taken out many at a time: once there are more bytes in it than it is to hold by an eighth of those. One at a time, no
/// processor could guess whether one goes, or none, or two.
const SLACK: usize = 8;

/// A block and the span that it is of, which stays that as long as the block is not back in it.
struct Entry {
    span: Cell<Option<&'static Span>>,
    block: Cell<*mut Block>,
}

type Ring = [Entry; MOST];

/// What a heap's thread freed last. All zero is an empty one.
pub(crate) struct Quarantine {
    /// Null until the first block comes.
    ring: Cell<*const Ring>,
    /// How many went in, and came out.
    added: Cell<usize>,
    taken: Cell<usize>,
    /// Bytes of those in it.
    bytes: Cell<usize>,
}

impl Quarantine {
    /// An empty one.
    pub(crate) const fn new() -> Quarantine {
        Quarantine {
            ring: Cell::new(core::ptr::null()),
            added: Cell::new(0),
            taken: Cell::new(0),
            bytes: Cell::new(0),
        }
    }

    fn ring(&self) -> Option<&'static Ring> {
        if self.ring.get().is_null() {
            self.ring.set(memfold_arena::pinned_bytes(size_of::<Ring>(), 64)?.cast());
        }
        // SAFETY: pinned bytes of that size, zero at first, that nobody gives back.
        unsafe { self.ring.get().as_ref() }
    }

    fn count(&self) -> usize {
        self.added.get() - self.taken.get()
    }

    /// Puts a block of a span in. False if there is no memory for it.
    pub(crate) fn add(&self, span: &'static Span, block: *mut Block) -> bool {
        let Some(ring) = self.ring() else { return false };
        let entry = &ring[self.added.get() % MOST];
        entry.span.set(Some(span));
        entry.block.set(block);
        self.added.set(self.added.get() + 1);
        self.bytes.set(self.bytes.get() + span.block_size() as usize);
        true
    }

    /// Whether so much is in it, where it is to hold `limit` bytes, that some should be taken out.
    #[inline]
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.bytes.get() > limit + limit / SLACK || self.count() >= MOST
    }

    /// Takes the block out that has been in it for the longest time, with its span, if there are more than `limit` bytes in it, or more
    /// blocks than an eighth less than it has room for.
    pub(crate) fn take_beyond(&self, limit: usize) -> Option<(&'static Span, *mut Block)> {
        if self.count() == 0 || self.bytes.get() <= limit && self.count() < MOST - MOST / SLACK {
            return None;
        }
        let entry = &self.ring()?[self.taken.get() % MOST];
        let span = entry.span.get()?;
        self.taken.set(self.taken.get() + 1);
        self.bytes.set(self.bytes.get() - span.block_size() as usize);
        Some((span, entry.block.get()))
    }
}
