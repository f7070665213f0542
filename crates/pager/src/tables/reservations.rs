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

/// A reservation.
#[derive(Clone, Copy)]
struct Reserved {
    range: Bounds,
    /// No core dump has some of it (`MADV_DONTDUMP`), and counts for all of it: .NET and WebKit say so of what they reserve, and take it back of
    /// each part that they make accessible.
    undumped: bool,
}

/// Ranges that do not meet, in no order.
#[derive(Clone, Copy)]
struct List {
    ranges: [Reserved; MOST],
    len: usize,
}

impl List {
    const EMPTY: List =
        List { ranges: [Reserved { range: Bounds { start: 0, end: 0 }, undumped: false }; MOST], len: 0 };

    /// Adds a range that meets none.
    fn add(&mut self, new: Reserved) {
        let len = |reserved: &Reserved| reserved.range.end - reserved.range.start;
        if self.len < MOST {
            self.ranges[self.len] = new;
            self.len += 1;
        } else if let Some(shortest) = self.ranges.iter_mut().min_by_key(|reserved| len(reserved)) {
            if len(shortest) < len(&new) {
                *shortest = new;
            }
        }
    }

    fn remove(&mut self, gone: Bounds) {
        let (before, mut behind) = (*self, None);
        self.len = 0;
        for reserved in &before.ranges[..before.len] {
            let (range, part) = (reserved.range, |range| Reserved { range, ..*reserved });
            let left = Bounds { start: range.start, end: range.end.min(gone.start) };
            let right = Bounds { start: range.start.max(gone.end), end: range.end };
            match (left.start < left.end, right.start < right.end) {
                (true, true) if left.end == range.end || right.start == range.start => self.add(*reserved),
                // No other reaches beyond both ends.
                (true, true) => {
                    self.add(part(left));
                    behind = Some(part(right));
                }
                (true, false) => self.add(part(left)),
                (false, true) => self.add(part(right)),
                (false, false) => {}
            }
        }
        if let Some(right) = behind {
            self.add(right);
        }
    }

    /// What core dumps are said to have or not to have of a range. That they have it counts of whole reservations alone.
    fn set_dumped(&mut self, said: Bounds, dumped: bool) {
        for Reserved { range, undumped } in &mut self.ranges[..self.len] {
            let whole = said.start <= range.start && range.end <= said.end;
            let meets = said.start < range.end && range.start < said.end;
            *undumped = if dumped { *undumped && !whole } else { *undumped || meets };
        }
    }

    /// The part of every range that lies in another; empty where there is none.
    fn parts(&self, wanted: Bounds) -> impl Iterator<Item = Reserved> + '_ {
        let part = move |reserved: &Reserved| {
            let start = reserved.range.start.max(wanted.start);
            let range = Bounds { start, end: reserved.range.end.min(wanted.end).max(start) };
            Reserved { range, ..*reserved }
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

    fn reserved(place: (usize, usize)) -> Reserved {
        Reserved { range: range(place), undumped: false }
    }

    #[test]
    fn where_there_is_no_room_the_shortest_is_forgotten() {
        let mut list = List::EMPTY;
        (0..MOST).for_each(|n| list.add(reserved((n * 1000, 100 + n))));
        list.add(reserved((1_000_000, 50)));
        assert!(!list.ranges.iter().any(|reserved| reserved.range.start == 1_000_000));
        list.add(reserved((1_000_000, 500)));
        assert!(!list.ranges.iter().any(|reserved| reserved.range.start == 0));
        assert!(list.ranges.iter().any(|reserved| reserved.range.start == 1_000_000));
    }

    #[test]
    fn what_no_dump_has_a_part_of_counts_until_dumps_have_all_of_it() {
        let undumped = |list: &List| -> Vec<(usize, bool)> {
            list.ranges[..list.len].iter().map(|reserved| (reserved.range.start, reserved.undumped)).collect()
        };
        let mut list = List::EMPTY;
        list.add(reserved((1000, 500)));
        list.add(reserved((2000, 500)));
        list.set_dumped(range((1100, 10)), false);
        list.set_dumped(range((1500, 500)), false);
        assert_eq!(undumped(&list), [(1000, true), (2000, false)]);
        list.set_dumped(range((1100, 10)), true);
        // What is left of it is as it was.
        list.remove(range((1200, 10)));
        assert_eq!(undumped(&list), [(1000, true), (2000, false), (1210, true)]);
        list.set_dumped(range((900, 400)), true);
        assert_eq!(undumped(&list), [(1000, false), (2000, false), (1210, true)]);
    }

    proptest! {
        #[test]
        fn a_page_is_reserved_from_when_it_is_added_until_it_is_removed(steps in prop::collection::vec((any::<bool>(), 0..200usize, 1..60usize), 1..40)) {
            let (mut list, mut model) = (List::EMPTY, [false; 300]);
            for (adds, start, len) in steps {
                list.remove(range((start, len)));
                if adds {
                    list.add(reserved((start, len)));
                }
                model[start..start + len].fill(adds);
                let parts: Vec<Bounds> = list.parts(range((0, 300))).map(|part| part.range).collect();
                for (page, reserved) in model.iter().enumerate() {
                    let found = parts.iter().filter(|part| part.start <= page && page < part.end).count();
                    prop_assert_eq!(found, usize::from(*reserved), "page {}", page);
                }
            }
        }
    }
}
