//! A reference bit instead of a move at each hit.

use super::list::Queues;
use super::{Outcome, Replacement};
use alloc::vec::Vec;

/// CLOCK, the second chance: the oldest page goes unless it was requested since it was last looked at; then it begins
/// anew as the youngest (Corbató, 1968).
pub struct Clock {
    /// The resident pages; from the hand on they are the older, the further the younger.
    ring: Vec<u32>,
    hand: usize,
    capacity: usize,
    state: Vec<State>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Away,
    Resident,
    Requested,
}

impl Clock {
    pub fn new(capacity: usize, universe: usize) -> Clock {
        Clock { ring: Vec::new(), hand: 0, capacity, state: alloc::vec![State::Away; universe] }
    }

    /// Puts `page` where the first page is that was not requested; that page goes.
    fn replace(&mut self, page: u32) -> u32 {
        loop {
            let at = self.hand;
            self.hand = if at + 1 == self.capacity { 0 } else { at + 1 };
            let state = &mut self.state[self.ring[at] as usize];
            if *state == State::Resident {
                *state = State::Away;
                return core::mem::replace(&mut self.ring[at], page);
            }
            *state = State::Resident;
        }
    }
}

impl Replacement for Clock {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            self.state[page as usize] = State::Requested;
            return Outcome::Hit;
        }
        self.state[page as usize] = State::Resident;
        if self.ring.len() < self.capacity {
            self.ring.push(page);
            return Outcome::Miss { evicted: None };
        }
        Outcome::Miss { evicted: Some(self.replace(page)) }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.state[page as usize] != State::Away
    }

    fn resident(&self) -> usize {
        self.ring.len()
    }

    fn prefetch(&self, page: u32) {
        super::fetch::prefetch(&self.state, page);
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

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}
