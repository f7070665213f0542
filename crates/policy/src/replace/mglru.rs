//! Generations instead of one order.

use super::list::Queues;
use super::{Outcome, Replacement};

/// Most generations that are told apart (`MAX_NR_GENS`).
const GENERATIONS: usize = 4;

/// MGLRU: pages stand in generations by when they were last found referenced; the oldest generation is evicted from, and a
/// referenced page found there goes to the youngest (Zhao, Linux 6.1, 2022, `mm/vmscan.c`). Four generations, as in Linux;
/// the next one begins when the youngest holds a quarter of the pages, where Linux begins it when the oldest two run dry.
/// The tiers of files that are read by descriptor are left out: every request here is a touch.
pub struct MgLru {
    queues: Queues<GENERATIONS>,
    capacity: usize,
    oldest: usize,
    youngest: usize,
    resident: usize,
}

impl MgLru {
    pub fn new(capacity: usize, universe: usize) -> MgLru {
        MgLru { queues: Queues::new(universe), capacity, oldest: 0, youngest: 0, resident: 0 }
    }

    fn add(&mut self, page: u32) {
        if self.queues.len(self.youngest) >= self.capacity.div_ceil(GENERATIONS) {
            let next = (self.youngest + 1) % GENERATIONS;
            if next != self.oldest {
                self.youngest = next;
            }
        }
        *self.queues.mark(page) = 0;
        self.queues.push_front(self.youngest, page);
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let Some(page) = self.queues.pop_back(self.oldest) else {
                if self.oldest == self.youngest {
                    return None;
                }
                self.oldest = (self.oldest + 1) % GENERATIONS;
                continue;
            };
            if *self.queues.mark(page) == 0 {
                return Some(page);
            }
            self.add(page);
        }
    }
}

impl Replacement for MgLru {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            *self.queues.mark(page) = 1;
            return Outcome::Hit;
        }
        let evicted = if self.resident == self.capacity { self.evict() } else { None };
        self.resident += usize::from(evicted.is_none());
        self.add(page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.resident
    }
}
