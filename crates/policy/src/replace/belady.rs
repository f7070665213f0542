//! The offline bound.

use super::{Outcome, Replacement};
use alloc::vec::Vec;

/// The request that never comes.
pub const NEVER: u64 = u64::MAX;

/// No page, or no bucket.
const NONE: u32 = u32::MAX;
/// A bucket holds the pages that are requested next within 2^7 requests.
const BUCKET: u32 = 7;
/// The bucket of pages that are never requested again.
const LAST: usize = 0;

#[derive(Clone, Copy)]
struct Node {
    /// The number of the next request; 0 for a page that is away.
    next: u64,
    newer: u32,
    older: u32,
}

/// Belady's MIN: the page goes that is requested again last (Belady, 1966). No policy misses less; it needs the future.
///
/// Pages lie in buckets by their next requests, which need no order among each other: a page that is asked for lies in the
/// first bucket that is not past, and the one to go in the last that is not empty.
pub struct Belady {
    nodes: Vec<Node>,
    /// The first page of each bucket.
    heads: Vec<u32>,
    filled: Bits,
    capacity: usize,
    resident: usize,
}

impl Belady {
    pub fn new(capacity: usize, universe: usize) -> Belady {
        let nodes = alloc::vec![Node { next: 0, newer: NONE, older: NONE }; universe];
        Belady { nodes, heads: Vec::new(), filled: Bits::default(), capacity, resident: 0 }
    }

    fn bucket(next: u64) -> usize {
        if next == NEVER {
            LAST
        } else {
            1 + (next >> BUCKET) as usize
        }
    }

    fn insert(&mut self, page: u32, next: u64) {
        let bucket = Belady::bucket(next);
        if bucket >= self.heads.len() {
            self.heads.resize((bucket + 1).next_power_of_two(), NONE);
        }
        let older = core::mem::replace(&mut self.heads[bucket], page);
        self.nodes[page as usize] = Node { next, newer: NONE, older };
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = page,
            None => self.filled.set(bucket),
        }
    }

    fn remove(&mut self, page: u32) {
        let Node { next, newer, older } =
            core::mem::replace(&mut self.nodes[page as usize], Node { next: 0, newer: NONE, older: NONE });
        if let Some(node) = self.nodes.get_mut(older as usize) {
            node.newer = newer;
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => {
                let bucket = Belady::bucket(next);
                self.heads[bucket] = older;
                if older == NONE {
                    self.filled.clear(bucket);
                }
            }
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let mut victim = self.heads.get(LAST).copied().filter(|&page| page != NONE);
        if victim.is_none() {
            let mut page = self.heads[self.filled.last()?];
            let mut latest = 0;
            while page != NONE {
                let node = self.nodes[page as usize];
                if node.next > latest {
                    (latest, victim) = (node.next, Some(page));
                }
                page = node.older;
            }
        }
        let page = victim?;
        self.remove(page);
        self.resident -= 1;
        Some(page)
    }
}

impl Replacement for Belady {
    fn request(&mut self, page: u32, next: u64) -> Outcome {
        debug_assert!(next != 0, "the first request is nobody's next");
        if self.is_resident(page) {
            self.remove(page);
            self.insert(page, next);
            return Outcome::Hit;
        }
        let evicted = if self.resident == self.capacity { self.evict() } else { None };
        self.resident += 1;
        self.insert(page, next);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.nodes[page as usize].next != 0
    }

    fn resident(&self) -> usize {
        self.resident
    }

    fn prefetch(&self, page: u32) {
        super::fetch::prefetch(&self.nodes, page);
    }
}

/// A set of numbers that knows its largest: bits, and above each 64 words of them a word that says which are not zero.
#[derive(Default)]
struct Bits {
    levels: [Vec<u64>; 6],
}

impl Bits {
    fn set(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            let word = at / 64;
            if word >= level.len() {
                level.resize((word + 1).next_power_of_two(), 0);
            }
            let before = level[word];
            level[word] |= 1 << (at % 64);
            if before != 0 {
                break;
            }
            at = word;
        }
    }

    fn clear(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            let word = at / 64;
            level[word] &= !(1 << (at % 64));
            if level[word] != 0 {
                break;
            }
            at = word;
        }
    }

    fn last(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = *level.get(at)?;
            if word == 0 {
                return None;
            }
            at = at * 64 + 63 - word.leading_zeros() as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::Bits;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_largest_number_of_a_set_is_known(
            steps in prop::collection::vec((0usize..300_000, any::<bool>()), 1..200)
        ) {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for (number, add) in steps {
                if add {
                    bits.set(number);
                    model.insert(number);
                } else if let Some(&last) = model.last() {
                    bits.clear(last);
                    model.remove(&last);
                }
                prop_assert_eq!(bits.last(), model.last().copied());
            }
        }
    }
}
