//! A page daemon in the simulator: requests one by one instead of reference bits once a pass.

use super::{PageDaemon, Place, INTERVAL};
use crate::replace::{Outcome, Replacement};

/// A page daemon as a replacement policy: a pass is made when a page is missed and none is free, as often as it takes.
///
/// A page of the free queue counts as resident until its memory is used, and its request as a hit.
pub struct Simulated<D> {
    daemon: D,
    capacity: usize,
    resident: usize,
}

impl<D: PageDaemon> Simulated<D> {
    /// For a cache of `capacity` pages.
    pub fn new(daemon: D, capacity: usize) -> Simulated<D> {
        Simulated { daemon, capacity, resident: 0 }
    }
}

impl<D: PageDaemon> Replacement for Simulated<D> {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            self.daemon.touch(page, false);
            return Outcome::Hit;
        }
        let mut evicted = None;
        if self.resident == self.capacity {
            evicted = self.daemon.take_free();
            while evicted.is_none() {
                self.daemon.pass(self.capacity, INTERVAL);
                evicted = self.daemon.take_free();
            }
        } else {
            self.resident += 1;
        }
        self.daemon.touch(page, false);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.daemon.place(page) != Place::Out
    }

    fn resident(&self) -> usize {
        self.resident
    }
}
