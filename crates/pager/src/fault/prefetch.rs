//! Requests from the fault thread to helpers or the background thread: bring these pages back before they are touched.
//!
//! One producer, any number of consumers; a full queue loses the request, which costs a fault later and nothing else.

use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::PAGE_SIZE;

const LEN: usize = 512;

/// The queue.
pub struct PrefetchQueue {
    /// Page number in the high 48 bits, number of pages in the low 16.
    requests: [AtomicU64; LEN],
    put: AtomicU32,
    taken: AtomicU32,
}

impl PrefetchQueue {
    /// An empty queue.
    pub const fn new() -> PrefetchQueue {
        PrefetchQueue {
            requests: [const { AtomicU64::new(0) }; LEN],
            put: AtomicU32::new(0),
            taken: AtomicU32::new(0),
        }
    }

    /// Asks for `pages` pages from address `page` on. False when the queue is full.
    pub fn put(&self, page: usize, pages: usize) -> bool {
        let put = self.put.load(Relaxed);
        // Acquire: the consumer has read the slot before we write it again.
        if put.wrapping_sub(self.taken.load(Acquire)) as usize >= LEN {
            return false;
        }
        let request = ((page / PAGE_SIZE) as u64) << 16 | pages.min(0xFFFF) as u64;
        self.requests[put as usize % LEN].store(request, Relaxed);
        // Release: the consumer sees the slot.
        self.put.store(put.wrapping_add(1), Release);
        true
    }

    /// Asks for so many pages in pieces, each of which another may take. Returns how many pieces there was room for, the first ones.
    pub fn put_in_pieces(&self, page: usize, pages: usize, piece: usize) -> usize {
        let pieces = (0..pages).step_by(piece);
        pieces.take_while(|at| self.put(page + at * PAGE_SIZE, piece.min(pages - at))).count()
    }

    /// The oldest request, as address and number of pages.
    pub fn take(&self) -> Option<(usize, usize)> {
        // Acquire: who sees that another has taken a request sees that it was put, and does not take what comes after the last.
        let mut taken = self.taken.load(Acquire);
        loop {
            if self.put.load(Acquire) == taken {
                return None;
            }
            let request = self.requests[taken as usize % LEN].load(Relaxed);
            // The slot is not written again before it is taken: if nobody else has taken it, what was read is whole. Release: the producer
            // writes it after that.
            match self.taken.compare_exchange(taken, taken.wrapping_add(1), AcqRel, Acquire) {
                Ok(_) => return Some(((request >> 16) as usize * PAGE_SIZE, (request & 0xFFFF) as usize)),
                Err(now) => taken = now,
            }
        }
    }

    /// Forgets the parent's requests, in a forked child.
    pub fn reset_in_child(&self) {
        self.taken.store(self.put.load(Relaxed), Relaxed);
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        // Others may have taken more meanwhile.
        (self.put.load(Acquire).wrapping_sub(self.taken.load(Relaxed)) as i32).max(0) as usize
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.put.load(Acquire) == self.taken.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn requests_come_out_in_order_and_a_full_queue_refuses() {
        let queue = PrefetchQueue::new();
        for round in 0..3 {
            let mut accepted = 0;
            while queue.put((round + accepted + 1) * PAGE_SIZE, accepted + 1) {
                accepted += 1;
            }
            assert_eq!(accepted, LEN);
            for n in 0..LEN {
                assert_eq!(queue.take(), Some(((round + n + 1) * PAGE_SIZE, n + 1)));
            }
            assert!(queue.is_empty() && queue.take().is_none());
        }
    }

    #[test]
    fn pages_asked_for_in_pieces_come_out_so_and_as_many_as_there_is_room_for() {
        let queue = PrefetchQueue::new();
        assert_eq!(queue.put_in_pieces(PAGE_SIZE, 20, 8), 3);
        let pieces: Vec<_> = core::iter::from_fn(|| queue.take()).collect();
        assert_eq!(pieces, [(PAGE_SIZE, 8), (9 * PAGE_SIZE, 8), (17 * PAGE_SIZE, 4)]);
        assert_eq!(queue.put_in_pieces(PAGE_SIZE, 0, 8), 0);
        while queue.len() < LEN - 2 {
            queue.put(PAGE_SIZE, 1);
        }
        assert_eq!(queue.put_in_pieces(PAGE_SIZE, 64, 8), 2);
        assert_eq!(queue.put_in_pieces(PAGE_SIZE, 64, 8), 0);
    }
}
