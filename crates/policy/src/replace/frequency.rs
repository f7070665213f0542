//! By how often a page was requested.

use super::list::Queues;
use super::{share, Outcome, Replacement};
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;
/// Counts stop here, so that the table of counts stays small.
const MOST: u32 = 1 << 20;

#[derive(Clone, Copy)]
struct Node {
    /// Towards the page that came to this count last.
    newer: u32,
    /// Towards the one that goes first.
    older: u32,
    /// Requests since it came; 0 for a page that is away.
    count: u32,
}

/// LFU: the page with the fewest requests since it came goes, the one least recently requested among equals. In constant
/// time by a list for each count (Shah, Mitra and Matani, 2010); counts of pages that went are forgotten.
pub struct Lfu {
    nodes: Vec<Node>,
    /// Newest and oldest page of each count.
    lists: Vec<(u32, u32)>,
    least: u32,
    resident: usize,
    capacity: usize,
}

impl Lfu {
    pub fn new(capacity: usize, universe: usize) -> Lfu {
        let node = Node { newer: NONE, older: NONE, count: 0 };
        Lfu { nodes: alloc::vec![node; universe], lists: Vec::new(), least: 1, resident: 0, capacity }
    }

    fn push(&mut self, page: u32, count: u32) {
        let at = count as usize;
        if at >= self.lists.len() {
            self.lists.resize(at + 1, (NONE, NONE));
        }
        let newest = core::mem::replace(&mut self.lists[at].0, page);
        self.nodes[page as usize] = Node { newer: NONE, older: newest, count };
        match self.nodes.get_mut(newest as usize) {
            Some(node) => node.newer = page,
            None => self.lists[at].1 = page,
        }
    }

    fn remove(&mut self, page: u32) -> u32 {
        let Node { newer, older, count } = self.nodes[page as usize];
        let ends = &mut self.lists[count as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => ends.0 = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => ends.1 = newer,
        }
        self.nodes[page as usize].count = 0;
        count
    }

    fn evict(&mut self) -> Option<u32> {
        let oldest = self.lists.get(self.least as usize)?.1;
        self.remove(oldest);
        Some(oldest)
    }
}

impl Replacement for Lfu {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            let count = self.remove(page);
            let next = (count + 1).min(MOST);
            if count == self.least && self.lists[count as usize].0 == NONE {
                self.least = next;
            }
            self.push(page, next);
            return Outcome::Hit;
        }
        let evicted = if self.resident == self.capacity { self.evict() } else { None };
        self.resident += usize::from(evicted.is_none());
        self.push(page, 1);
        self.least = 1;
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.nodes[page as usize].count != 0
    }

    fn resident(&self) -> usize {
        self.resident
    }
}

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// A count of the sketch stops here.
const SKETCH_MOST: u8 = 15;
/// Requests after which all counts are halved, in capacities.
const SAMPLE: usize = 10;

/// W-TinyLFU: a small LRU window before a segmented LRU, which a page that leaves the window enters only if it was
/// requested more often than the page that would have to go (Einziger, Friedman and Manes, ACM TOS 2017). Page numbers
/// being indices, requests are counted exactly, where the paper has a sketch; counts stop at 15 and are halved every ten
/// capacities of requests, as there, or every universe of them where that is more.
pub struct WTinyLfu {
    queues: Queues<3>,
    counts: Vec<u8>,
    requests: usize,
    capacity: usize,
    window: usize,
    protected: usize,
}

impl WTinyLfu {
    /// `window` and `protected` are the shares of the capacity and of the main part.
    pub fn new(capacity: usize, universe: usize, window: f64, protected: f64) -> WTinyLfu {
        let window = share(capacity, window);
        WTinyLfu {
            queues: Queues::new(universe),
            counts: alloc::vec![0; universe],
            requests: 0,
            capacity,
            window,
            protected: ((capacity - window) as f64 * protected) as usize,
        }
    }

    fn count(&mut self, page: u32) {
        let count = &mut self.counts[page as usize];
        *count = (*count + 1).min(SKETCH_MOST);
        self.requests += 1;
        if self.requests >= SAMPLE * self.capacity.max(self.counts.len() / SAMPLE) {
            self.requests /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
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

    /// Moves what the window has too much into the main part, if it earns the place. Returns who went.
    fn settle(&mut self) -> Option<u32> {
        if self.queues.len(WINDOW) <= self.window {
            return None;
        }
        let candidate = self.queues.pop_back(WINDOW)?;
        if self.resident() < self.capacity {
            self.queues.push_front(PROBATION, candidate);
            return None;
        }
        let Some(victim) = self.queues.back(PROBATION).or(self.queues.back(PROTECTED)) else {
            return Some(candidate);
        };
        if self.counts[candidate as usize] <= self.counts[victim as usize] {
            return Some(candidate);
        }
        self.queues.remove(victim);
        self.queues.push_front(PROBATION, candidate);
        Some(victim)
    }
}

impl Replacement for WTinyLfu {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        self.count(page);
        if let Some(queue) = self.queues.queue_of(page) {
            self.hit(page, queue);
            return Outcome::Hit;
        }
        self.queues.push_front(WINDOW, page);
        Outcome::Miss { evicted: self.settle() }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.queues.len(WINDOW) + self.queues.len(PROBATION) + self.queues.len(PROTECTED)
    }
}
