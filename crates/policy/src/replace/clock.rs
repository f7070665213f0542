//! A reference bit instead of a move at each hit.

use super::list::Queues;
use super::{Outcome, Replacement};

/// CLOCK, the second chance: the oldest page goes unless it was requested since it was last looked at; then it begins
/// anew as the youngest (Corbató, 1968).
pub struct Clock {
    queues: Queues<1>,
    capacity: usize,
}

impl Clock {
    pub fn new(capacity: usize, universe: usize) -> Clock {
        Clock { queues: Queues::new(universe), capacity }
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let page = self.queues.back(0)?;
            if core::mem::take(self.queues.mark(page)) == 0 {
                self.queues.remove(page);
                return Some(page);
            }
            self.queues.move_to_front(0, page);
        }
    }
}

impl Replacement for Clock {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            *self.queues.mark(page) = 1;
            return Outcome::Hit;
        }
        let evicted = if self.resident() == self.capacity { self.evict() } else { None };
        *self.queues.mark(page) = 0;
        self.queues.push_front(0, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.is_in(page, 0)
    }

    fn resident(&self) -> usize {
        self.queues.len(0)
    }
}

/// SIEVE: a hand goes from the oldest page to the youngest, spares what was requested since it last came by, where it
/// is, and takes the first that was not (Zhang et al., NSDI 2024).
pub struct Sieve {
    queues: Queues<1>,
    capacity: usize,
    hand: Option<u32>,
}

impl Sieve {
    pub fn new(capacity: usize, universe: usize) -> Sieve {
        Sieve { queues: Queues::new(universe), capacity, hand: None }
    }

    fn evict(&mut self) -> Option<u32> {
        let mut page = self.hand.or(self.queues.back(0))?;
        while core::mem::take(self.queues.mark(page)) != 0 {
            page = self.queues.newer(page).or(self.queues.back(0))?;
        }
        self.hand = self.queues.newer(page);
        self.queues.remove(page);
        Some(page)
    }
}

impl Replacement for Sieve {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            *self.queues.mark(page) = 1;
            return Outcome::Hit;
        }
        let evicted = if self.resident() == self.capacity { self.evict() } else { None };
        *self.queues.mark(page) = 0;
        self.queues.push_front(0, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.is_in(page, 0)
    }

    fn resident(&self) -> usize {
        self.queues.len(0)
    }
}
