//! How a slot that nobody needs any more gets back to the background thread, from any thread and without waiting.

use crate::slot::Slot;
use crate::sync::{AtomicUsize, Ordering::*};

/// Slots on their way back to the background thread, linked through the word behind their header.
#[derive(Default)]
pub struct FreeQueue {
    head: AtomicUsize,
    /// Of those that children have not. The same steps as with the other, which is the one that models look at.
    unforked: core::sync::atomic::AtomicUsize,
}

impl FreeQueue {
    /// An empty queue.
    pub const fn new() -> FreeQueue {
        FreeQueue { head: AtomicUsize::new(0), unforked: core::sync::atomic::AtomicUsize::new(0) }
    }

    /// Gives a slot up. Never blocks; from any thread.
    ///
    /// # Safety
    /// No page entry names the slot any more, and nobody gives it up twice.
    pub unsafe fn push(&self, slot: Slot) {
        // SAFETY: the slot is the caller's; its old bytes are of no more use.
        let link = |head| unsafe { slot.link() }.store(head, Relaxed);
        // SAFETY: it is allocated.
        if unsafe { slot.header() }.apart().unforked {
            let queue = &self.unforked;
            let mut head = queue.load(Relaxed);
            loop {
                link(head);
                // Release: the link is seen by who takes the list.
                match queue.compare_exchange_weak(head, slot.addr(), Release, Relaxed) {
                    Ok(_) => return,
                    Err(now) => head = now,
                }
            }
        }
        let mut head = self.head.load(Relaxed);
        loop {
            link(head);
            // Release: as above.
            match self.head.compare_exchange_weak(head, slot.addr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Forgets slots that a forked child has not.
    pub(crate) fn reset_in_child(&self) {
        self.unforked.store(0, Relaxed);
    }

    /// Takes all that is in it, one by one.
    pub(crate) fn take(&self, mut each: impl FnMut(Slot)) -> usize {
        let mut count = 0;
        // Acquire: pairs with the release of each push.
        for mut next in [self.head.swap(0, Acquire), self.unforked.swap(0, Acquire)] {
            while next != 0 {
                let slot = Slot::at(next);
                // SAFETY: a slot in the queue is nobody's any more, and its link stands behind the header.
                // Relaxed: ordered by the swap of the head.
                next = unsafe { slot.link() }.load(Relaxed);
                each(slot);
                count += 1;
            }
        }
        count
    }
}
