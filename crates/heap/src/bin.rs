//! Free blocks, and bins of them: what a thread takes from and puts into without asking anybody.
//!
//! What it is not: checked. Links in bins are stored as they are, because they are read on the fast path; those of every other list are
//! written by [`crate::links`].

use crate::sync::Cell;

/// A free block; the rest of it is whatever the program left there.
#[repr(C)]
pub(crate) struct Block {
    pub(crate) next: Cell<*mut Block>,
}

/// Free blocks of one span, linked from the first to the last; what the last one links to is nothing.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) first: *mut Block,
    pub(crate) last: *mut Block,
    pub(crate) count: u32,
}

impl Run {
    pub(crate) fn of_one(block: *mut Block) -> Run {
        Run { first: block, last: block, count: 1 }
    }
}

/// Free blocks of one class, last in first out.
#[repr(C)]
pub(crate) struct Bin {
    head: Cell<*mut Block>,
    /// How many more it may take; less [`CLOSED`] where only who counts them may put any in.
    room: Cell<i32>,
}

/// More than any bin has room for.
const CLOSED: i32 = 1 << 30;

impl Bin {
    /// With nothing in it and no room for anything; all zero.
    pub(crate) const fn new() -> Bin {
        Bin { head: Cell::new(core::ptr::null_mut()), room: Cell::new(0) }
    }

    /// Says how many blocks it may take, while there is none in it.
    pub(crate) fn set_room(&self, room: i32) {
        self.room.set(room);
    }

    /// Lets it take so many blocks more than before.
    pub(crate) fn add_room(&self, more: i32) {
        self.room.set(self.room.get() + more);
    }

    /// Takes the block that was put in last, or null.
    #[inline(always)]
    pub(crate) fn pop(&self) -> *mut Block {
        let block = self.head.get();
        if !block.is_null() {
            // SAFETY: blocks in a bin are free, mapped, and hold a link.
            self.head.set(unsafe { (*block).next.get() });
            self.room.set(self.room.get() + 1);
        }
        block
    }

    /// Puts a block in; there must be room.
    ///
    /// # Safety
    /// The block is free, of the bin's class, and of the domain of the bin's heap.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, block: *mut Block) {
        // SAFETY: a free block is ours to write.
        unsafe { (*block).next.set(self.head.get()) };
        self.head.set(block);
        self.room.set(self.room.get() - 1);
    }

    /// Puts the blocks of a run in, of which the first comes out first; there must be room.
    ///
    /// # Safety
    /// As for [`Bin::push`], of each of them.
    pub(crate) unsafe fn push_run(&self, run: Run) {
        // SAFETY: a free block is ours to write.
        unsafe { (*run.last).next.set(self.head.get()) };
        self.head.set(run.first);
        self.room.set(self.room.get() - run.count as i32);
    }

    /// Whether so many more are not too many.
    pub(crate) fn has_room_for(&self, count: u32) -> bool {
        self.room.get() >= count as i32
    }

    /// Whether one more is not too many.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.room.get() > 0
    }

    /// Whether there is a block in it.
    pub(crate) fn has_some(&self) -> bool {
        !self.head.get().is_null()
    }

    /// Has it take no more blocks of those who ask whether it has room.
    pub(crate) fn close(&self) {
        debug_assert!(!self.is_closed());
        self.room.set(self.room.get() - CLOSED);
    }

    /// Ends that.
    pub(crate) fn open(&self) {
        debug_assert!(self.is_closed());
        self.room.set(self.room.get() + CLOSED);
    }

    fn is_closed(&self) -> bool {
        self.room.get() < -CLOSED / 2
    }

    /// How many blocks are in it, which may have `limit`.
    pub(crate) fn count(&self, limit: i32) -> i32 {
        limit - self.room.get() - if self.is_closed() { CLOSED } else { 0 }
    }

    /// Cuts everything behind the first `keep` blocks off and returns it.
    pub(crate) fn cut(&self, keep: i32, limit: i32) -> *mut Block {
        let mut link = &self.head;
        let mut kept = 0;
        while kept < keep && !link.get().is_null() {
            // SAFETY: blocks in a bin are free, mapped, and hold a link.
            link = unsafe { &(*link.get()).next };
            kept += 1;
        }
        let closed = if self.is_closed() { CLOSED } else { 0 };
        self.room.set(limit - kept - closed);
        link.replace(core::ptr::null_mut())
    }
}
