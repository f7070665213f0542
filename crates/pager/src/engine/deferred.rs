//! What restores give up during a fork, which must stay as it is until it is over.

use super::Engine;
use crate::lock::Mutex;
use crate::sabotage::fault_point;
use crate::slot::Slot;
use crate::tier::location::Location;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Pages whose places can wait for the end of a fork; further ones stay taken for ever.
const MOST: usize = 512;

/// The places that wait. Of agents alone: the lock is held for moments, and by none that the program can stop.
pub(crate) struct Deferred {
    list: Mutex<List>,
    /// 1 where there is any.
    any: AtomicU32,
}

struct List {
    places: [Location; MOST],
    len: usize,
}

impl Deferred {
    /// None.
    pub(super) const fn new() -> Deferred {
        let places = [Location::Memory(Slot::NONE); MOST];
        Deferred { list: Mutex::new(List { places, len: 0 }), any: AtomicU32::new(0) }
    }

    /// Keeps a place until [`Deferred::take_all`].
    fn keep(&self, place: Location) {
        {
            let mut list = self.list.lock();
            let len = list.len;
            if let Some(free) = list.places.get_mut(len) {
                *free = place;
                list.len += 1;
            }
        }
        self.any.store(1, Release);
    }

    fn are_any(&self) -> bool {
        self.any.load(Acquire) != 0
    }

    /// Has `give_up` each of them, of which none is left.
    fn take_all(&self, mut give_up: impl FnMut(Location)) {
        self.any.store(0, Relaxed);
        let mut list = self.list.lock();
        let len = core::mem::take(&mut list.len);
        list.places[..len].iter().for_each(|place| give_up(*place));
    }

    /// Forgets the parent's, in a forked child: its pages still name them, or they stay allocated for ever.
    pub(crate) fn forget_in_child(&self) {
        self.list.reset_in_child();
        self.take_all(|_| ());
    }
}

impl Engine {
    /// Gives up the place of a page that no entry names any more.
    ///
    /// During a fork it must keep its bytes: the child may have got the page's entry as it was before.
    /// Only the fault thread and the tier's restore then.
    pub(crate) fn release(&self, place: Location) {
        if fault_point!(SlotsNotKept: self.traffic.is_forking(), else false) {
            self.storage.deferred.keep(place);
        } else {
            self.free(place);
        }
    }

    /// Gives up what was kept during a fork. The fault thread's, which does so before anything else after a fork.
    pub(crate) fn flush_deferred(&self) {
        if self.storage.deferred.are_any() && !self.traffic.is_forking() {
            self.storage.deferred.take_all(|place| self.free(place));
        }
    }

    fn free(&self, place: Location) {
        // SAFETY: who gave it up took the entry that named it, and gives it up once.
        unsafe { self.storage.free(place, self.options.wipes.load(Relaxed) != 0) };
    }
}
