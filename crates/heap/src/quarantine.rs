//! Freed blocks that are not to serve again yet: a ring of the last ones, first in first out.
//!
//! What it is: for checked blocks, so that an address does not come back soon, and who frees or writes to it late meets no other
//! block. It holds so many bytes, or [`MOST`] blocks, and lies out of line. What it is not: shared, or a judgement of where a block goes
//! then; that is [`crate::flush`]'s.

use crate::bin::Block;
use crate::sync::Cell;
use core::mem::size_of;

/// The most blocks in it.
const MOST: usize = 2048;

type Ring = [Cell<*mut Block>; MOST];

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

    /// Puts a block of `size` bytes in. False if there is no memory for it.
    pub(crate) fn add(&self, block: *mut Block, size: u32) -> bool {
        let Some(ring) = self.ring() else { return false };
        ring[self.added.get() % MOST].set(block);
        self.added.set(self.added.get() + 1);
        self.bytes.set(self.bytes.get() + size as usize);
        true
    }

    /// Takes the block out that has been in it for the longest time, if there are more than `limit` bytes in it or no room for
    /// another. `size` says how many it has.
    pub(crate) fn take_beyond(
        &self,
        limit: usize,
        size: impl FnOnce(*mut Block) -> u32,
    ) -> Option<*mut Block> {
        let count = self.added.get() - self.taken.get();
        if count == 0 || self.bytes.get() <= limit && count < MOST {
            return None;
        }
        let block = self.ring()?[self.taken.get() % MOST].get();
        self.taken.set(self.taken.get() + 1);
        self.bytes.set(self.bytes.get() - size(block) as usize);
        Some(block)
    }
}
