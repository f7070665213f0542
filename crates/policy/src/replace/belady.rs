//! The offline bound.

use super::{Outcome, Replacement};
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// The request that never comes.
pub const NEVER: u64 = u64::MAX;

/// Not resident.
const AWAY: u64 = 0;

/// Belady's MIN: the page goes that is requested again last (Belady, 1966). No policy misses less; it needs the future.
pub struct Belady {
    /// Pages by their next request; entries that are out of date are dropped when they come up.
    order: BinaryHeap<(u64, u32)>,
    /// When each resident page is requested next; [`AWAY`] for others.
    next: Vec<u64>,
    capacity: usize,
    resident: usize,
}

impl Belady {
    pub fn new(capacity: usize, universe: usize) -> Belady {
        Belady { order: BinaryHeap::new(), next: alloc::vec![AWAY; universe], capacity, resident: 0 }
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let (next, page) = self.order.pop()?;
            if self.next[page as usize] == next {
                self.next[page as usize] = AWAY;
                self.resident -= 1;
                return Some(page);
            }
        }
    }
}

impl Replacement for Belady {
    fn request(&mut self, page: u32, next: u64) -> Outcome {
        debug_assert!(next != AWAY, "the first request is nobody's next");
        let hit = self.is_resident(page);
        let mut evicted = None;
        if !hit {
            if self.resident == self.capacity {
                evicted = self.evict();
            }
            self.resident += 1;
        }
        self.next[page as usize] = next;
        self.order.push((next, page));
        // Out-of-date entries are of requests that have been, so they pile up at the bottom.
        if self.order.len() > 4 * self.capacity + 64 {
            let next = &self.next;
            self.order.retain(|&(at, page)| next[page as usize] == at);
        }
        if hit {
            Outcome::Hit
        } else {
            Outcome::Miss { evicted }
        }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.next[page as usize] != AWAY
    }

    fn resident(&self) -> usize {
        self.resident
    }
}
