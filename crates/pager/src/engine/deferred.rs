//! Slots that restores give up during a fork, which must keep their bytes until it is over.

use super::Engine;
use crate::sabotage::{planted, Bug};
use crate::store::Slot;
use core::sync::atomic::Ordering::*;

/// Slots that can wait for the end of a fork; further ones stay allocated for ever.
const DEFERRED: usize = 512;

/// Those that wait.
pub(super) struct Deferred {
    slots: [Slot; DEFERRED],
    len: usize,
}

impl Deferred {
    /// None.
    pub(super) const fn new() -> Deferred {
        Deferred { slots: [Slot::NONE; DEFERRED], len: 0 }
    }
}

impl Engine {
    /// Gives up a slot that no page entry names any more.
    ///
    /// During a fork it must keep its bytes: the child may have got the page's entry as it was before.
    /// Only the fault thread restores then.
    pub(crate) fn give_up_slot(&self, slot: Slot) {
        if self.forking.load(SeqCst) == 0 || planted(Bug::SlotsNotKept) {
            // SAFETY: the caller took the entry that named the slot.
            unsafe { self.free(slot) };
            return;
        }
        // SAFETY: the fault thread's own.
        let deferred = unsafe { &mut *self.deferred.get() };
        if deferred.len < DEFERRED {
            deferred.slots[deferred.len] = slot;
            deferred.len += 1;
        }
    }

    /// Gives up what was kept during a fork. Fault thread only.
    pub(crate) fn flush_deferred(&self) {
        // SAFETY: the fault thread's own.
        let deferred = unsafe { &mut *self.deferred.get() };
        if deferred.len == 0 || self.forking.load(SeqCst) != 0 {
            return;
        }
        for slot in &deferred.slots[..deferred.len] {
            // SAFETY: each was given up once.
            unsafe { self.free(*slot) };
        }
        deferred.len = 0;
    }

    /// Leaves the slot to the background thread, which overwrites it, or overwrites it first.
    ///
    /// # Safety
    /// The caller took the entry that named the slot, and gives it up once.
    unsafe fn free(&self, slot: Slot) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.wipes.load(Relaxed) != 0 {
                slot.wipe();
            }
            self.free_slots.push(slot);
        }
    }

    /// Forgets the parent's, in a forked child: its pages still name them, or they stay allocated for ever.
    pub(crate) fn forget_deferred_in_child(&self) {
        // SAFETY: the only thread of the process.
        unsafe { (*self.deferred.get()).len = 0 };
    }
}
