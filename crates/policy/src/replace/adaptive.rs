//! Policies that learn how much recency and frequency are worth.

use super::list::Queues;
use super::{share, Outcome, Replacement};

/// ARC: one LRU list of pages requested once and one of pages requested again, each with a ghost list of those that left
/// it; a hit in a ghost list makes the list before it larger (Megiddo and Modha, FAST 2003).
pub struct Arc {
    queues: Queues<4>,
    capacity: usize,
    /// Pages that the first list should have.
    target: f64,
}

const ONCE: usize = 0;
const AGAIN: usize = 1;
const ONCE_GHOST: usize = 2;
const AGAIN_GHOST: usize = 3;

impl Arc {
    pub fn new(capacity: usize, universe: usize) -> Arc {
        Arc { queues: Queues::new(universe), capacity, target: 0.0 }
    }

    /// Makes room in the cache; what goes is remembered.
    fn replace(&mut self, by_frequency: bool) -> Option<u32> {
        let once = self.queues.len(ONCE) as f64;
        let from_once = once > 0.0
            && (once > self.target || by_frequency && once == self.target || self.queues.len(AGAIN) == 0);
        let (from, to) = if from_once { (ONCE, ONCE_GHOST) } else { (AGAIN, AGAIN_GHOST) };
        let page = self.queues.pop_back(from)?;
        self.queues.push_front(to, page);
        Some(page)
    }
}

impl Replacement for Arc {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        let (b1, b2) = (self.queues.len(ONCE_GHOST), self.queues.len(AGAIN_GHOST));
        let ratio = |other: usize, own: usize| (other as f64 / own as f64).max(1.0);
        match self.queues.queue_of(page) {
            Some(ONCE | AGAIN) => {
                self.queues.remove(page);
                self.queues.push_front(AGAIN, page);
                Outcome::Hit
            }
            Some(ghost) => {
                if ghost == ONCE_GHOST {
                    self.target = (self.target + ratio(b2, b1)).min(self.capacity as f64);
                } else {
                    self.target = (self.target - ratio(b1, b2)).max(0.0);
                }
                let full = self.resident() == self.capacity;
                let evicted = if full { self.replace(ghost == AGAIN_GHOST) } else { None };
                self.queues.remove(page);
                self.queues.push_front(AGAIN, page);
                Outcome::Miss { evicted }
            }
            None => {
                let once = self.queues.len(ONCE);
                let mut evicted = None;
                if once + b1 == self.capacity {
                    if once < self.capacity {
                        self.queues.pop_back(ONCE_GHOST);
                        if self.resident() == self.capacity {
                            evicted = self.replace(false);
                        }
                    } else {
                        evicted = self.queues.pop_back(ONCE);
                    }
                } else if self.resident() == self.capacity {
                    if self.resident() + b1 + b2 == 2 * self.capacity {
                        self.queues.pop_back(AGAIN_GHOST);
                    }
                    evicted = self.replace(false);
                }
                self.queues.push_front(ONCE, page);
                Outcome::Miss { evicted }
            }
        }
    }

    fn is_resident(&self, page: u32) -> bool {
        matches!(self.queues.queue_of(page), Some(ONCE | AGAIN))
    }

    fn resident(&self) -> usize {
        self.queues.len(ONCE) + self.queues.len(AGAIN)
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}

/// LIRS: pages whose last two requests lie close together keep nearly all of the cache; the others share a small queue
/// (Jiang and Zhang, SIGMETRICS 2002). `hir`: that queue's share.
///
/// Of the pages that left and are still in the stack as many are remembered as the cache has pages, as in libCacheSim; the
/// paper sets no bound.
pub struct Lirs {
    /// Recency of all pages that matter, and its oldest is always a low one.
    stack: Queues<1>,
    /// Resident pages of high inter-reference recency, and those that left and are in the stack.
    high: Queues<2>,
    low_pages: usize,
    capacity: usize,
    most_low: usize,
}

/// [`Lirs::stack`]'s marks.
const HIGH: u8 = 0;
const LOW: u8 = 1;
/// [`Lirs::high`]'s queues.
const HERE: usize = 0;
const LEFT: usize = 1;

impl Lirs {
    pub fn new(capacity: usize, universe: usize, high: f64) -> Lirs {
        let most_low = capacity - share(capacity, high).min(capacity);
        Lirs { stack: Queues::new(universe), high: Queues::new(universe), low_pages: 0, capacity, most_low }
    }

    /// Takes pages off the stack's bottom until a low one is there.
    fn prune(&mut self) {
        while let Some(page) = self.stack.back(0) {
            if *self.stack.mark(page) == LOW {
                break;
            }
            self.stack.remove(page);
            if self.high.is_in(page, LEFT) {
                self.high.remove(page);
            }
        }
    }

    /// The low page at the stack's bottom becomes a high one.
    fn demote(&mut self) {
        let Some(page) = self.stack.pop_back(0) else { return };
        *self.stack.mark(page) = HIGH;
        self.low_pages -= 1;
        self.high.push_front(HERE, page);
        self.prune();
    }

    fn touch(&mut self, page: u32) {
        if self.stack.is_in(page, 0) {
            self.stack.remove(page);
        }
        self.stack.push_front(0, page);
    }

    fn evict(&mut self) -> Option<u32> {
        if self.high.len(HERE) == 0 {
            self.demote();
        }
        let page = self.high.pop_back(HERE)?;
        if self.stack.is_in(page, 0) {
            self.high.push_front(LEFT, page);
            if self.high.len(LEFT) > self.capacity {
                if let Some(oldest) = self.high.pop_back(LEFT) {
                    self.stack.remove(oldest);
                }
            }
        }
        Some(page)
    }
}

impl Replacement for Lirs {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        let in_stack = self.stack.is_in(page, 0);
        if in_stack && *self.stack.mark(page) == LOW {
            let was_bottom = self.stack.back(0) == Some(page);
            self.touch(page);
            if was_bottom {
                self.prune();
            }
            return Outcome::Hit;
        }
        let hit = self.high.is_in(page, HERE);
        let mut evicted = None;
        if !hit && self.resident() == self.capacity {
            evicted = self.evict();
        }
        // The eviction may have taken it off the stack.
        let in_stack = self.stack.is_in(page, 0);
        if self.high.queue_of(page).is_some() {
            self.high.remove(page);
        }
        let low = in_stack && self.most_low > 0 || !hit && self.low_pages < self.most_low;
        self.touch(page);
        if low {
            *self.stack.mark(page) = LOW;
            self.low_pages += 1;
            if self.low_pages > self.most_low {
                self.demote();
            }
        } else {
            *self.stack.mark(page) = HIGH;
            self.high.push_front(HERE, page);
            if self.low_pages == 0 {
                self.prune();
            }
        }
        if hit {
            Outcome::Hit
        } else {
            Outcome::Miss { evicted }
        }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.high.is_in(page, HERE) || self.stack.is_in(page, 0) && !self.high.is_in(page, LEFT)
    }

    fn resident(&self) -> usize {
        self.low_pages + self.high.len(HERE)
    }

    fn prefetch(&self, page: u32) {
        self.stack.prefetch(page);
        self.high.prefetch(page);
    }
}
