//! What restores give up during a fork, which must stay as it is until it is over.

use super::Engine;
use crate::lock::Mutex;
use crate::sabotage::{planted, Bug};
use crate::store::Slot;
use crate::tier::location::Location;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::*;

/// Pages whose places can wait for the end of a fork; further ones stay taken for ever.
const DEFERRED: usize = 512;

/// The places that wait. Of agents alone: the lock is held for moments, and by none that the program can stop.
pub(super) struct Deferred {
    lock: Mutex,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    places: [Location; DEFERRED],
    len: usize,
}

// SAFETY: `inner` is reached under `lock`.
unsafe impl Sync for Deferred {}

impl Deferred {
    /// None.
    pub(super) const fn new() -> Deferred {
        let places = [Location::Memory(Slot::NONE); DEFERRED];
        Deferred { lock: Mutex::new(), inner: UnsafeCell::new(Inner { places, len: 0 }) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: under the lock.
        work(unsafe { &mut *self.inner.get() })
    }
}

impl Engine {
    /// Gives up the place of a page that no entry names any more.
    ///
    /// During a fork it must keep its bytes: the child may have got the page's entry as it was before.
    /// Only the fault thread and the tier's restore then.
    pub(crate) fn release(&self, place: Location) {
        if self.forking.load(SeqCst) == 0 || planted(Bug::SlotsNotKept) {
            self.free(place);
            return;
        }
        self.deferred.with(|deferred| {
            if let Some(free) = deferred.places.get_mut(deferred.len) {
                *free = place;
                deferred.len += 1;
            }
        });
        self.any_deferred.store(1, Release);
    }

    /// Gives up what was kept during a fork. The fault thread's, which does so before anything else after a fork.
    pub(crate) fn flush_deferred(&self) {
        if self.any_deferred.load(Acquire) == 0 || self.forking.load(SeqCst) != 0 {
            return;
        }
        self.any_deferred.store(0, Relaxed);
        self.deferred.with(|deferred| {
            for place in &deferred.places[..core::mem::take(&mut deferred.len)] {
                self.free(*place);
            }
        });
    }

    /// Leaves a slot to the background thread, which overwrites it, or overwrites it first; and a page below memory as one that nobody wants.
    /// The caller took the entry that named the place, and gives it up once.
    fn free(&self, place: Location) {
        match place {
            // SAFETY: the caller's contract.
            Location::Memory(slot) => unsafe {
                if self.wipes.load(Relaxed) != 0 {
                    slot.wipe();
                }
                self.free_slots.push(slot);
            },
            Location::Below(berth) => {
                if let Some(below) = self.below() {
                    below.pages.fetch_sub(1, Relaxed);
                    below.clusters.drop_page(berth.cluster, berth.page);
                }
            }
        }
    }

    /// Forgets the parent's, in a forked child: its pages still name them, or they stay allocated for ever.
    pub(crate) fn forget_deferred_in_child(&self) {
        self.deferred.lock.reset_in_child();
        self.deferred.with(|deferred| deferred.len = 0);
        self.any_deferred.store(0, Relaxed);
    }
}
