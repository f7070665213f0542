//! By how often a page was requested.

use super::{Outcome, Replacement};
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
