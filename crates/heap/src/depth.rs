//! How many free blocks of a class a heap keeps at hand: more, where they are taken and put back many at a time.
//!
//! What it is: the limit of each bin. A bin that runs out and then overflows was too small for how the program goes up and down, and
//! gets twice the room; one that only overflows does not. What it is not: the bin's own count of its room ([`crate::bin`]).
//!
//! Invariants: a limit is between [`classes::limit`] and [`classes::most`]; all limits of a heap together are at most
//! [`MOST_GROWTH`] bytes above the former.

use crate::classes;
use crate::sync::Cell;

/// By how many bytes the limits of one heap may grow together.
const MOST_GROWTH: usize = 512 << 10;

/// The limits of a heap's bins.
pub(crate) struct Depths {
    limits: [Cell<u16>; classes::COUNT],
    /// Whether it ran out since it overflowed.
    ran_out: [Cell<bool>; classes::COUNT],
    /// Bytes by which limits were raised.
    growth: Cell<usize>,
}

impl Depths {
    /// All zero.
    pub(crate) const fn new() -> Depths {
        Depths {
            limits: [const { Cell::new(0) }; classes::COUNT],
            ran_out: [const { Cell::new(false) }; classes::COUNT],
            growth: Cell::new(0),
        }
    }

    /// How many blocks the bin of `class` may hold.
    pub(crate) fn limit(&self, class: usize) -> i32 {
        i32::from(self.limits[class].get())
    }

    /// Makes the limit of a class what it is at first.
    pub(crate) fn reset(&self, class: usize) {
        let (first, now) = (classes::limit(class), self.limit(class));
        self.growth.set(
            self.growth.get().saturating_sub((now - first).max(0) as usize * classes::block_size(class)),
        );
        self.limits[class].set(first as u16);
        self.ran_out[class].set(false);
    }

    /// A block was asked for, and the bin had none.
    pub(crate) fn note_empty(&self, class: usize) {
        self.ran_out[class].set(true);
    }

    /// Whether the bin ran out since it was full.
    #[inline(always)]
    pub(crate) fn ran_out(&self, class: usize) -> bool {
        self.ran_out[class].get()
    }

    /// The bin is full. Returns how many blocks more it may hold from now on.
    pub(crate) fn raise(&self, class: usize) -> i32 {
        if !self.ran_out[class].replace(false) {
            return 0;
        }
        let (limit, size) = (self.limit(class), classes::block_size(class));
        let left = (MOST_GROWTH - self.growth.get()) / size;
        let more = limit.min(classes::most(class) - limit).min(left as i32);
        self.growth.set(self.growth.get() + more as usize * size);
        self.limits[class].set((limit + more) as u16);
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh() -> Depths {
        let depths = Depths::new();
        (0..classes::COUNT).for_each(|class| depths.reset(class));
        depths
    }

    #[test]
    fn what_only_piles_up_gets_no_more_room() {
        let depths = fresh();
        assert_eq!(depths.raise(3), 0);
        depths.note_empty(3);
        assert_eq!(depths.raise(3), classes::limit(3));
        assert_eq!(depths.raise(3), 0, "it overflows again, and did not run out");
        assert_eq!(depths.limit(3), 2 * classes::limit(3));
        depths.reset(3);
        assert_eq!(depths.limit(3), classes::limit(3));
    }

    proptest! {
        #[test]
        fn limits_stay_between_their_bounds_and_their_growth_below_its_own(
            calls in prop::collection::vec((0..classes::COUNT, 0..5u8), 0..2000),
        ) {
            let depths = fresh();
            for (class, call) in calls {
                match call {
                    0 => depths.reset(class),
                    _ => {
                        depths.note_empty(class);
                        depths.raise(class);
                    }
                }
                let all = 0..classes::COUNT;
                let growth: usize = all
                    .map(|class| (depths.limit(class) - classes::limit(class)) as usize * classes::block_size(class))
                    .sum();
                prop_assert_eq!(growth, depths.growth.get());
                prop_assert!(growth <= MOST_GROWTH);
                prop_assert!((classes::limit(class)..=classes::most(class)).contains(&depths.limit(class)));
            }
        }
    }
}
