//! W-TinyLFU: who comes into the cache is decided by how often it was asked for, and so by the counts.

use super::list::Queues;
use super::sketch::Sketch;
use super::{share, Outcome, Replacement};
use alloc::vec::Vec;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// An LRU window, and a main part of two segments.
struct Parts {
    queues: Queues<3>,
    capacity: usize,
    window: usize,
    /// What the main part protects at most.
    protected: usize,
}

impl Parts {
    /// `window` and `protected` are the shares of the capacity and of the main part.
    fn new(capacity: usize, universe: usize, window: f64, protected: f64) -> Parts {
        let window = share(capacity, window);
        let protected = ((capacity - window) as f64 * protected) as usize;
        Parts { queues: Queues::new(universe), capacity, window, protected }
    }

    fn resident(&self) -> usize {
        self.queues.len(WINDOW) + self.main()
    }

    fn main(&self) -> usize {
        self.queues.len(PROBATION) + self.queues.len(PROTECTED)
    }

    /// Who goes from the main part next.
    fn victim(&self) -> Option<u32> {
        self.queues.back(PROBATION).or(self.queues.back(PROTECTED))
    }

    fn hit(&mut self, page: u32, queue: usize) {
        if queue != PROBATION {
            self.queues.move_to_front(queue, page);
            return;
        }
        self.queues.remove(page);
        self.queues.push_front(PROTECTED, page);
        if self.queues.len(PROTECTED) > self.protected {
            if let Some(page) = self.queues.pop_back(PROTECTED) {
                self.queues.push_front(PROBATION, page);
            }
        }
    }
}

/// A count stops here.
const MOST: u8 = 15;
/// Requests after which all counts are halved, in capacities.
const SAMPLE: usize = 10;

/// W-TinyLFU: a small LRU window before a segmented LRU, which a page that leaves the window enters only if it was
/// requested more often than the page that would have to go (Einziger, Friedman and Manes, ACM TOS 2017). Page numbers
/// being indices, requests are counted exactly, where the paper has a sketch; counts stop at 15 and are halved every ten
/// capacities of requests, as there: each when it is next looked at.
pub struct WTinyLfu {
    parts: Parts,
    counts: Vec<Count>,
    requests: usize,
    halvings: u32,
}

/// Requests of a page, as of a time before which so many halvings were.
#[derive(Clone, Copy, Default)]
struct Count {
    requests: u8,
    halvings: u32,
}

impl WTinyLfu {
    /// `window` and `protected` are the shares of the capacity and of the main part.
    pub fn new(capacity: usize, universe: usize, window: f64, protected: f64) -> WTinyLfu {
        let parts = Parts::new(capacity, universe, window, protected);
        WTinyLfu { parts, counts: alloc::vec![Count::default(); universe], requests: 0, halvings: 0 }
    }

    fn count(&mut self, page: u32) {
        let requests = (self.requests_of(page) + 1).min(MOST);
        self.counts[page as usize] = Count { requests, halvings: self.halvings };
        self.requests += 1;
        if self.requests >= SAMPLE * self.parts.capacity {
            self.requests /= 2;
            self.halvings = self.halvings.wrapping_add(1);
        }
    }

    fn requests_of(&self, page: u32) -> u8 {
        let count = self.counts[page as usize];
        count.requests.checked_shr(self.halvings.wrapping_sub(count.halvings)).unwrap_or(0)
    }

    /// Moves what the window has too much into the main part, if it earns the place. Returns who went.
    fn settle(&mut self) -> Option<u32> {
        let parts = &mut self.parts;
        if parts.queues.len(WINDOW) <= parts.window {
            return None;
        }
        let candidate = parts.queues.pop_back(WINDOW)?;
        if parts.resident() < parts.capacity {
            parts.queues.push_front(PROBATION, candidate);
            return None;
        }
        let Some(victim) = parts.victim() else { return Some(candidate) };
        if self.requests_of(candidate) <= self.requests_of(victim) {
            return Some(candidate);
        }
        self.parts.queues.remove(victim);
        self.parts.queues.push_front(PROBATION, candidate);
        Some(victim)
    }
}

impl Replacement for WTinyLfu {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        self.count(page);
        if let Some(queue) = self.parts.queues.queue_of(page) {
            self.parts.hit(page, queue);
            return Outcome::Hit;
        }
        self.parts.queues.push_front(WINDOW, page);
        Outcome::Miss { evicted: self.settle() }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.parts.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.parts.resident()
    }
}

/// Hits in the main part after which all counts are halved, in its sizes.
const SKETCH_SAMPLE: usize = 32;

/// W-TinyLFU by libCacheSim's rules. They count a page when it comes, when it is hit in the main part, and when it has
/// competed for a place there, but no hit in the window; without a limit; in a counting Bloom filter for as many pages as the main
/// part has, which all others that were ever asked for share. The window keeps what comes until the cache is full, and the main
/// part fills its protected segment when the other one is full.
pub struct Sketched {
    parts: Parts,
    sketch: Sketch,
    hits: usize,
}

impl Sketched {
    /// `window` and `protected` are the shares of the capacity and of the main part.
    pub fn new(capacity: usize, universe: usize, window: f64, protected: f64) -> Sketched {
        let mut parts = Parts::new(capacity, universe, window, protected);
        // No least of one page, as theirs.
        parts.window = (capacity as f64 * window) as usize;
        parts.protected = ((capacity - parts.window) as f64 * protected) as usize;
        let sketch = Sketch::new(capacity - parts.window);
        Sketched { parts, sketch, hits: 0 }
    }

    /// Puts a page into the first segment of the main part that has room.
    fn enter_main(&mut self, page: u32) {
        let parts = &mut self.parts;
        let probation = parts.capacity - parts.window - parts.protected;
        let full = parts.queues.len(PROBATION) >= probation && parts.queues.len(PROTECTED) < parts.protected;
        parts.queues.push_front(if full { PROTECTED } else { PROBATION }, page);
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let Some(candidate) = self.parts.queues.back(WINDOW) else {
                let victim = self.parts.victim()?;
                self.parts.queues.remove(victim);
                return Some(victim);
            };
            let room = self.parts.main() < self.parts.capacity - self.parts.window;
            let victim = self.parts.victim().filter(|_| !room);
            let wins = victim.is_none_or(|victim| self.sketch.count(candidate) > self.sketch.count(victim));
            self.parts.queues.remove(candidate);
            let gone = if wins { victim } else { Some(candidate) };
            if let Some(victim) = victim.filter(|_| wins) {
                self.parts.queues.remove(victim);
            }
            if wins && (room || victim.is_some()) {
                self.enter_main(candidate);
            }
            self.sketch.add(candidate);
            if gone.is_some() {
                return gone;
            }
        }
    }
}

impl Replacement for Sketched {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if let Some(queue) = self.parts.queues.queue_of(page) {
            self.parts.hit(page, queue);
            if queue != WINDOW {
                self.sketch.add(page);
                self.hits += 1;
                if self.hits >= SKETCH_SAMPLE * (self.parts.capacity - self.parts.window) {
                    self.hits = 0;
                    self.sketch.halve();
                }
            }
            return Outcome::Hit;
        }
        let evicted = if self.parts.resident() == self.parts.capacity { self.evict() } else { None };
        self.parts.queues.push_front(WINDOW, page);
        self.sketch.add(page);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.parts.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.parts.resident()
    }
}
