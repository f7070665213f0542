//! Doubly linked queues of pages, kept in arrays: each page is in at most one of them.

use alloc::vec::Vec;

/// No page.
const NONE: u32 = u32::MAX;
/// In no queue.
const OUT: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Node {
    /// Towards the front.
    newer: u32,
    /// Towards the back.
    older: u32,
    /// The queue, or [`OUT`].
    queue: u8,
    /// For the policy: a reference bit, or a small count.
    mark: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    front: u32,
    back: u32,
    len: usize,
}

/// `N` queues.
pub struct Queues<const N: usize> {
    nodes: Vec<Node>,
    ends: [Ends; N],
}

impl<const N: usize> Queues<N> {
    /// Empty queues for page numbers below `universe`.
    pub fn new(universe: usize) -> Queues<N> {
        let node = Node { newer: NONE, older: NONE, queue: OUT, mark: 0 };
        Queues { nodes: alloc::vec![node; universe], ends: [Ends { front: NONE, back: NONE, len: 0 }; N] }
    }

    /// Makes room for page numbers below `universe`.
    pub fn grow(&mut self, universe: usize) {
        let node = Node { newer: NONE, older: NONE, queue: OUT, mark: 0 };
        self.nodes.resize(universe.max(self.nodes.len()), node);
    }

    /// The queue that the page is in.
    pub fn queue_of(&self, page: u32) -> Option<usize> {
        let queue = self.nodes[page as usize].queue;
        (queue != OUT).then_some(queue as usize)
    }

    /// Whether the page is in that queue.
    pub fn is_in(&self, page: u32, queue: usize) -> bool {
        self.nodes[page as usize].queue == queue as u8
    }

    /// How many pages a queue has.
    pub fn len(&self, queue: usize) -> usize {
        self.ends[queue].len
    }

    /// The page at the back.
    pub fn back(&self, queue: usize) -> Option<u32> {
        Some(self.ends[queue].back).filter(|&page| page != NONE)
    }

    /// The page at the front.
    pub fn front(&self, queue: usize) -> Option<u32> {
        Some(self.ends[queue].front).filter(|&page| page != NONE)
    }

    /// The page one step nearer to the back.
    pub fn older(&self, page: u32) -> Option<u32> {
        Some(self.nodes[page as usize].older).filter(|&page| page != NONE)
    }

    /// The page one step nearer to the front.
    pub fn newer(&self, page: u32) -> Option<u32> {
        Some(self.nodes[page as usize].newer).filter(|&page| page != NONE)
    }

    /// The policy's mark of a page.
    pub fn mark(&mut self, page: u32) -> &mut u8 {
        &mut self.nodes[page as usize].mark
    }

    /// Puts a page that is in no queue at the front of one.
    pub fn push_front(&mut self, queue: usize, page: u32) {
        debug_assert!(self.queue_of(page).is_none());
        let front = core::mem::replace(&mut self.ends[queue].front, page);
        let node = &mut self.nodes[page as usize];
        (node.newer, node.older, node.queue) = (NONE, front, queue as u8);
        match self.nodes.get_mut(front as usize) {
            Some(node) => node.newer = page,
            None => self.ends[queue].back = page,
        }
        self.ends[queue].len += 1;
    }

    /// Puts a page that is in no queue at the back of one.
    pub fn push_back(&mut self, queue: usize, page: u32) {
        debug_assert!(self.queue_of(page).is_none());
        let back = core::mem::replace(&mut self.ends[queue].back, page);
        let node = &mut self.nodes[page as usize];
        (node.newer, node.older, node.queue) = (back, NONE, queue as u8);
        match self.nodes.get_mut(back as usize) {
            Some(node) => node.older = page,
            None => self.ends[queue].front = page,
        }
        self.ends[queue].len += 1;
    }

    /// Takes a page out of its queue.
    pub fn remove(&mut self, page: u32) {
        let Node { newer, older, queue, .. } = self.nodes[page as usize];
        debug_assert!(queue != OUT);
        let ends = &mut self.ends[queue as usize];
        ends.len -= 1;
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => ends.front = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => ends.back = newer,
        }
        self.nodes[page as usize].queue = OUT;
    }

    /// Has the page's node fetched into the cache.
    pub fn prefetch(&self, page: u32) {
        super::fetch::prefetch(&self.nodes, page);
    }

    /// Takes the page at the back.
    pub fn pop_back(&mut self, queue: usize) -> Option<u32> {
        let page = self.back(queue)?;
        self.remove(page);
        Some(page)
    }

    /// Puts a page that is in a queue at the front of one.
    pub fn move_to_front(&mut self, queue: usize, page: u32) {
        if self.ends[queue].front != page {
            self.remove(page);
            self.push_front(queue, page);
        }
    }
}
