//! In which order a program wanted its memory after it last slept: so it is brought back when it wakes the next time.
//!
//! A page of each cluster that somebody waited for is noted, up to [`MOST`] of them: at 64 KiB a cluster they are two gigabytes. When
//! the program wakes, they are fetched in that order, and what is wanted beside them is noted behind them.
//!
//! What it is not: a promise. Where there is no room, or somebody waits, nothing is fetched ahead.
//!
//! Invariants: `list` is the tier thread's; others only say what it should do.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Clusters that are noted.
pub const MOST: usize = 32768;

/// Fetch what is noted, from the beginning.
const FETCH: u32 = 1;
/// Fetch no more.
const LEAVE: u32 = 2;

/// The order. Made from zeros.
pub struct Order {
    /// What the tier's thread is to do next; 0 for going on.
    asked: AtomicU32,
    /// 1 once the program slept: before that nothing is worth noting.
    notes: AtomicU32,
    list: UnsafeCell<List>,
}

// SAFETY: `list` is one thread's.
unsafe impl Sync for Order {}

struct List {
    /// Addresses of pages.
    pages: [usize; MOST],
    count: usize,
    /// The next to be fetched, and the first that is not.
    next: usize,
    end: usize,
}

impl Order {
    /// The program sleeps: nothing is fetched ahead, and what is wanted from now on is noted. Any thread.
    pub fn sleep(&self) {
        self.notes.store(1, Relaxed);
        self.asked.store(LEAVE, Release);
    }

    /// The program wakes: what is noted is fetched. Any thread.
    pub fn wake(&self) {
        self.asked.store(FETCH, Release);
    }

    /// Somebody waited for the page at this address, which brought its cluster.
    ///
    /// # Safety
    /// The tier's thread only.
    pub unsafe fn note(&self, page: usize) {
        if self.notes.load(Relaxed) == 0 {
            return;
        }
        // SAFETY: the caller's contract.
        let list = unsafe { &mut *self.list.get() };
        if list.count < MOST {
            list.pages[list.count] = page;
            list.count += 1;
        }
    }

    /// The next page whose cluster is to be fetched ahead.
    ///
    /// # Safety
    /// The tier's thread only.
    pub unsafe fn next(&self) -> Option<usize> {
        // SAFETY: the caller's contract.
        let list = unsafe { &mut *self.list.get() };
        match self.asked.swap(0, Acquire) {
            FETCH => (list.next, list.end) = (0, list.count),
            LEAVE => list.next = list.end,
            _ => {}
        }
        let page = (list.next < list.end).then(|| list.pages[list.next])?;
        list.next += 1;
        Some(page)
    }

    /// A forked child is a program of its own, which has not slept.
    ///
    /// # Safety
    /// Where there is no other thread.
    pub unsafe fn forget(&self) {
        self.asked.store(0, Relaxed);
        self.notes.store(0, Relaxed);
        // SAFETY: the caller's contract.
        let list = unsafe { &mut *self.list.get() };
        (list.count, list.next, list.end) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn order() -> Box<Order> {
        // SAFETY: zeros are an order in which nothing is noted.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn rest(order: &Order) -> Vec<usize> {
        // SAFETY: the only thread that has it.
        core::iter::from_fn(|| unsafe { order.next() }).collect()
    }

    #[test]
    fn what_was_wanted_after_a_sleep_is_fetched_in_that_order_after_the_next() {
        let order = order();
        // SAFETY: as above.
        let note = |page| unsafe { order.note(page) };
        note(9);
        order.wake();
        assert!(rest(&order).is_empty(), "noted before it ever slept");
        order.sleep();
        [3, 1, 2].into_iter().for_each(note);
        order.wake();
        // SAFETY: as above.
        assert_eq!(unsafe { order.next() }, Some(3));
        note(4);
        assert_eq!(rest(&order), [1, 2], "and not what was noted meanwhile");
        order.sleep();
        order.wake();
        // SAFETY: as above.
        assert_eq!(unsafe { order.next() }, Some(3));
        order.sleep();
        assert!(rest(&order).is_empty(), "it sleeps again");
        order.wake();
        assert_eq!(rest(&order), [3, 1, 2, 4]);
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let order = order();
        order.sleep();
        // SAFETY: as above.
        (0..MOST + 10).for_each(|page| unsafe { order.note(page) });
        order.wake();
        assert_eq!(rest(&order).len(), MOST);
    }
}
