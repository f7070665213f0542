//! The plain ones: least recently used, first in first out, and at random.

use super::list::Queues;
use super::{Outcome, Replacement};
use alloc::vec::Vec;

/// Least recently used: the page whose last request is the longest ago goes (Mattson et al., 1970).
pub struct Lru {
    queues: Queues<1>,
    capacity: usize,
}

impl Lru {
    pub fn new(capacity: usize, universe: usize) -> Lru {
        Lru { queues: Queues::new(universe), capacity }
    }
}

impl Replacement for Lru {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            self.queues.move_to_front(0, page);
            return Outcome::Hit;
        }
        let evicted = if self.resident() == self.capacity { self.queues.pop_back(0) } else { None };
        self.queues.push_front(0, page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.is_in(page, 0)
    }

    fn resident(&self) -> usize {
        self.queues.len(0)
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}

/// First in, first out: the page that has been resident the longest goes.
pub struct Fifo {
    /// A ring of the resident pages; the oldest is at `oldest` once it is full.
    ring: Vec<u32>,
    oldest: usize,
    capacity: usize,
    resident: Vec<bool>,
}

impl Fifo {
    pub fn new(capacity: usize, universe: usize) -> Fifo {
        Fifo { ring: Vec::new(), oldest: 0, capacity, resident: alloc::vec![false; universe] }
    }
}

impl Replacement for Fifo {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if core::mem::replace(&mut self.resident[page as usize], true) {
            return Outcome::Hit;
        }
        if self.ring.len() < self.capacity {
            self.ring.push(page);
            return Outcome::Miss { evicted: None };
        }
        let evicted = core::mem::replace(&mut self.ring[self.oldest], page);
        self.oldest = (self.oldest + 1) % self.capacity;
        self.resident[evicted as usize] = false;
        Outcome::Miss { evicted: Some(evicted) }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.resident[page as usize]
    }

    fn resident(&self) -> usize {
        self.ring.len()
    }

    fn prefetch(&self, page: u32) {
        super::fetch::prefetch(&self.resident, page);
    }
}

/// Any resident page goes, by a seeded generator (splitmix64: Steele, Lea and Flood, 2014).
pub struct Random {
    pages: Vec<u32>,
    capacity: usize,
    resident: Vec<bool>,
    state: u64,
}

impl Random {
    pub fn new(capacity: usize, universe: usize, seed: u64) -> Random {
        Random { pages: Vec::new(), capacity, resident: alloc::vec![false; universe], state: seed }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) as u128 * limit as u128) >> 64) as usize
    }
}

impl Replacement for Random {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if core::mem::replace(&mut self.resident[page as usize], true) {
            return Outcome::Hit;
        }
        if self.pages.len() < self.capacity {
            self.pages.push(page);
            return Outcome::Miss { evicted: None };
        }
        let at = self.below(self.capacity);
        let evicted = core::mem::replace(&mut self.pages[at], page);
        self.resident[evicted as usize] = false;
        Outcome::Miss { evicted: Some(evicted) }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.resident[page as usize]
    }

    fn resident(&self) -> usize {
        self.pages.len()
    }

    fn prefetch(&self, page: u32) {
        super::fetch::prefetch(&self.resident, page);
    }
}
