//! Address space that the program has reserved and cannot access yet, more than tables should be made for: JavaScript engines, .NET and
//! the allocators of browsers reserve gigabytes to terabytes and make parts of them accessible as they need them.
//!
//! A part comes into the tables when it becomes accessible. Only a few reservations are remembered; of what is forgotten nothing is
//! folded, and nothing else happens.
//!
//! Invariants: what is remembered is private anonymous memory, or was until it was replaced past libc, in which case the kernel refuses to
//! register it or to move from it. The list changes with signals blocked, inside the gate: no fork finds it half changed or locked.

mod entering;

use crate::lock::Mutex;
use crate::tables::bounds::Bounds;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// How many are remembered. When there is no room, the shortest is forgotten.
const MOST: usize = 64;

/// The list.
pub(crate) struct Reservations {
    list: Mutex<List>,
    /// How many there are, to be asked without the lock.
    count: AtomicU32,
}

impl Reservations {
    pub(crate) const fn new() -> Reservations {
        Reservations { list: Mutex::new(List::EMPTY), count: AtomicU32::new(0) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut List) -> R) -> R {
        let mut list = self.list.lock();
        let result = work(&mut list);
        self.count.store(list.len as u32, Relaxed);
        result
    }
}

/// Ranges that do not meet, in no order.
#[derive(Clone, Copy)]
struct List {
    ranges: [Bounds; MOST],
    len: usize,
}

impl List {
    const EMPTY: List = List { ranges: [Bounds { start: 0, end: 0 }; MOST], len: 0 };

    /// Adds a range that meets none.
    fn add(&mut self, range: Bounds) {
        if self.len < MOST {
            self.ranges[self.len] = range;
            self.len += 1;
        } else if let Some(shortest) = self.ranges.iter_mut().min_by_key(|range| range.end - range.start) {
            if shortest.end - shortest.start < range.end - range.start {
                *shortest = range;
            }
        }
    }

    fn remove(&mut self, gone: Bounds) {
        let (before, mut behind) = (*self, None);
        self.len = 0;
        for range in &before.ranges[..before.len] {
            let left = Bounds { start: range.start, end: range.end.min(gone.start) };
            let right = Bounds { start: range.start.max(gone.end), end: range.end };
            match (left.start < left.end, right.start < right.end) {
                (true, true) if left.end == range.end || right.start == range.start => self.add(*range),
                // No other reaches beyond both ends.
                (true, true) => {
                    self.add(left);
                    behind = Some(right);
                }
                (true, false) => self.add(left),
                (false, true) => self.add(right),
                (false, false) => {}
            }
        }
        if let Some(right) = behind {
            self.add(right);
        }
    }

    /// The part of every range that lies in another; empty where there is none.
    fn parts(&self, wanted: Bounds) -> impl Iterator<Item = Bounds> + '_ {
        let part = move |range: &Bounds| {
            let start = range.start.max(wanted.start);
            Bounds { start, end: range.end.min(wanted.end).max(start) }
        };
        self.ranges[..self.len].iter().map(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn range((start, len): (usize, usize)) -> Bounds {
        Bounds { start, end: start + len }
    }

    #[test]
    fn where_there_is_no_room_the_shortest_is_forgotten() {
        let mut list = List::EMPTY;
        (0..MOST).for_each(|n| list.add(range((n * 1000, 100 + n))));
        list.add(range((1_000_000, 50)));
        assert!(!list.ranges.iter().any(|range| range.start == 1_000_000));
        list.add(range((1_000_000, 500)));
        assert!(!list.ranges.iter().any(|range| range.start == 0));
        assert!(list.ranges.iter().any(|range| range.start == 1_000_000));
    }

    proptest! {
        #[test]
        fn a_page_is_reserved_from_when_it_is_added_until_it_is_removed(steps in prop::collection::vec((any::<bool>(), 0..200usize, 1..60usize), 1..40)) {
            let (mut list, mut model) = (List::EMPTY, [false; 300]);
            for (adds, start, len) in steps {
                list.remove(range((start, len)));
                if adds {
                    list.add(range((start, len)));
                }
                model[start..start + len].fill(adds);
                let parts: Vec<Bounds> = list.parts(range((0, 300))).collect();
                for (page, reserved) in model.iter().enumerate() {
                    let found = parts.iter().filter(|part| part.start <= page && page < part.end).count();
                    prop_assert_eq!(found, usize::from(*reserved), "page {}", page);
                }
            }
        }
    }
}
