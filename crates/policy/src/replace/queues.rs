//! Several queues through which pages move by their requests.

use super::list::Queues;
use super::{share, Outcome, Replacement};

/// SLRU: pages enter a probationary segment, and a hit there moves them to a protected one; both are LRU, and what the
/// protected one cannot hold goes back (Karedla, Love and Wherry, 1994). `protected`: its share of the cache.
pub struct Slru {
    queues: Queues<2>,
    capacity: usize,
    protected: usize,
}

const PROBATION: usize = 0;
const PROTECTED: usize = 1;

impl Slru {
    pub fn new(capacity: usize, universe: usize, protected: f64) -> Slru {
        let protected = ((capacity as f64 * protected) as usize).min(capacity - 1);
        Slru { queues: Queues::new(universe), capacity, protected }
    }
}

impl Replacement for Slru {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            self.queues.remove(page);
            if self.protected == 0 {
                self.queues.push_front(PROBATION, page);
                return Outcome::Hit;
            }
            if self.queues.len(PROTECTED) == self.protected {
                if let Some(demoted) = self.queues.pop_back(PROTECTED) {
                    self.queues.push_front(PROBATION, demoted);
                }
            }
            self.queues.push_front(PROTECTED, page);
            return Outcome::Hit;
        }
        let mut evicted = None;
        if self.resident() == self.capacity {
            evicted = self.queues.pop_back(PROBATION).or_else(|| self.queues.pop_back(PROTECTED));
        }
        self.queues.push_front(PROBATION, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.queues.len(PROBATION) + self.queues.len(PROTECTED)
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}

/// 2Q, the full version: pages enter a FIFO; those that leave it are remembered, and enter an LRU queue when they are
/// requested again (Johnson and Shasha, VLDB 1994). `in`: the FIFO's share of the cache; `out`: pages remembered, as a
/// share of it.
pub struct TwoQ {
    queues: Queues<3>,
    capacity: usize,
    most_in: usize,
    most_out: usize,
}

const IN: usize = 0;
const MAIN: usize = 1;
const REMEMBERED: usize = 2;

impl TwoQ {
    pub fn new(capacity: usize, universe: usize, most_in: f64, most_out: f64) -> TwoQ {
        let most_out = (capacity as f64 * most_out) as usize;
        TwoQ { queues: Queues::new(universe), capacity, most_in: share(capacity, most_in), most_out }
    }

    fn evict(&mut self) -> Option<u32> {
        if self.queues.len(IN) <= self.most_in {
            if let Some(page) = self.queues.pop_back(MAIN) {
                return Some(page);
            }
        }
        let Some(page) = self.queues.pop_back(IN) else { return self.queues.pop_back(MAIN) };
        if self.most_out > 0 {
            if self.queues.len(REMEMBERED) == self.most_out {
                self.queues.pop_back(REMEMBERED);
            }
            self.queues.push_front(REMEMBERED, page);
        }
        Some(page)
    }
}

impl Replacement for TwoQ {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        match self.queues.queue_of(page) {
            Some(IN) => return Outcome::Hit,
            Some(MAIN) => {
                self.queues.move_to_front(MAIN, page);
                return Outcome::Hit;
            }
            _ => {}
        }
        let remembered = self.queues.is_in(page, REMEMBERED);
        if remembered {
            self.queues.remove(page);
        }
        let evicted = if self.resident() == self.capacity { self.evict() } else { None };
        self.queues.push_front(if remembered { MAIN } else { IN }, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        matches!(self.queues.queue_of(page), Some(IN | MAIN))
    }

    fn resident(&self) -> usize {
        self.queues.len(IN) + self.queues.len(MAIN)
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}
