//! Three FIFO queues.

use super::list::Queues;
use super::{share, Outcome, Replacement};

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// Requests counted at most.
const MOST: u8 = 3;

/// S3-FIFO: pages enter a small FIFO; what was requested `move` times there goes on to the main one, the rest leaves and
/// is remembered by a ghost queue, from which a request leads straight to the main one (Yang et al., SOSP 2023). `small`:
/// the small queue's share of the cache; `ghost`: pages remembered, as a share of it.
///
/// By the paper's rules every new page enters the small queue, also while the cache fills for the first time, and so in
/// libCacheSim of 2024. With `fill` the main queue takes, until the first eviction, what the small one has no room for, as
/// in later libCacheSim: the paper gives the small queue a tenth of the cache and does not say what a cache that is not
/// full does.
pub struct S3Fifo {
    queues: Queues<3>,
    capacity: usize,
    small: usize,
    ghost: usize,
    threshold: u8,
    /// Whether new pages still go to the main queue when the small one is full.
    filling: bool,
}

impl S3Fifo {
    pub fn new(
        capacity: usize,
        universe: usize,
        small: f64,
        ghost: f64,
        threshold: u8,
        fill: bool,
    ) -> S3Fifo {
        let (small, ghost) = (share(capacity, small), (capacity as f64 * ghost) as usize);
        S3Fifo { queues: Queues::new(universe), capacity, small, ghost, threshold, filling: fill }
    }

    fn remember(&mut self, page: u32) {
        if self.ghost == 0 {
            return;
        }
        if self.queues.len(GHOST) == self.ghost {
            self.queues.pop_back(GHOST);
        }
        self.queues.push_front(GHOST, page);
    }

    fn evict(&mut self) -> Option<u32> {
        self.filling = false;
        loop {
            let from_main = self.queues.len(MAIN) > self.capacity - self.small || self.queues.len(SMALL) == 0;
            if from_main {
                let page = self.queues.back(MAIN)?;
                let count = self.queues.mark(page);
                if *count > 0 {
                    *count = (*count).min(MOST) - 1;
                    self.queues.move_to_front(MAIN, page);
                    continue;
                }
                self.queues.remove(page);
                return Some(page);
            }
            let page = self.queues.pop_back(SMALL)?;
            if *self.queues.mark(page) >= self.threshold {
                *self.queues.mark(page) = 0;
                self.queues.push_front(MAIN, page);
                continue;
            }
            self.remember(page);
            return Some(page);
        }
    }
}

impl Replacement for S3Fifo {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            let count = self.queues.mark(page);
            *count = (*count + 1).min(MOST);
            return Outcome::Hit;
        }
        let remembered = self.queues.is_in(page, GHOST);
        if remembered {
            self.queues.remove(page);
        }
        let evicted = if self.resident() == self.capacity { self.evict() } else { None };
        *self.queues.mark(page) = 0;
        let spill = self.filling && self.queues.len(SMALL) >= self.small;
        self.queues.push_front(if remembered || spill { MAIN } else { SMALL }, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        matches!(self.queues.queue_of(page), Some(SMALL | MAIN))
    }

    fn resident(&self) -> usize {
        self.queues.len(SMALL) + self.queues.len(MAIN)
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}
