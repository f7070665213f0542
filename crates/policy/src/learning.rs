//! When a dictionary is made of a program's pages, and whether it is used: decisions only.
//!
//! A dictionary costs some 20 ms to make, as much as compressing a thousand pages. It saves a quarter to a half of the time that a page
//! takes both ways, and, where pages have words in common, memory. Programs change what they hold; so another one is made now and then,
//! and takes the place of the first where it is better on pages that neither was made of.

/// So many pages are looked at to make one.
pub const SAMPLES: usize = 256;
/// Pages that are aside or stored before the first is made: before that it costs more than it brings.
const WORTHWHILE: u64 = 4096;
/// Pages that are stored between two that are made, at first and at most.
const AGAIN_FIRST: u64 = 16_384;
const AGAIN_MOST: u64 = 16 * AGAIN_FIRST;
/// What the first may take more than none, and the next must take less than the one in use, in per cent.
const DEARER: u64 = 1;
const BETTER: u64 = 3;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Learning {
    /// How many pages will have been stored when the next is made.
    next: u64,
    pause: u64,
}

impl Default for Learning {
    fn default() -> Self {
        Learning { next: 0, pause: AGAIN_FIRST }
    }
}

impl Learning {
    /// Whether one is to be made, with so many pages `stored` since the start and so many `aside`.
    pub fn is_due(&self, stored: u64, aside: u64) -> bool {
        aside >= SAMPLES as u64 && stored + aside >= WORTHWHILE && stored >= self.next
    }

    /// One was made, or could not be, with so many pages stored since the start: it takes `with` bytes for pages that take `now` as they
    /// are compressed now, by the one in use if there `is_one`. Whether it is to be used.
    pub fn made(&mut self, stored: u64, sizes: Option<(u64, u64)>, is_one: bool) -> bool {
        let used = sizes.is_some_and(|(now, with)| {
            let most = if is_one { now * (100 - BETTER) } else { now * (100 + DEARER) };
            with * 100 <= most
        });
        self.pause = if used { AGAIN_FIRST } else { (2 * self.pause).min(AGAIN_MOST) };
        self.next = stored + self.pause;
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_made_once_there_is_enough_to_compress_and_to_look_at() {
        let learning = Learning::default();
        assert!(!learning.is_due(0, 255) && !learning.is_due(0, 4095) && !learning.is_due(9000, 255));
        assert!(learning.is_due(0, 4096) && learning.is_due(9000, 256));
    }

    #[test]
    fn the_first_is_used_unless_it_costs_memory_and_the_next_where_it_saves_some() {
        let mut learning = Learning::default();
        assert!(!learning.made(0, Some((1000, 1011)), false) && learning.made(0, Some((1000, 1010)), false));
        assert!(!learning.made(0, Some((1000, 971)), true) && learning.made(0, Some((1000, 970)), true));
        assert!(!learning.made(0, None, false));
    }

    #[test]
    fn what_brings_nothing_is_tried_less_and_less_often() {
        let mut learning = Learning::default();
        assert!(learning.made(5000, Some((1000, 700)), false));
        assert!(!learning.is_due(5000 + AGAIN_FIRST - 1, 512) && learning.is_due(5000 + AGAIN_FIRST, 512));
        for n in 1..10 {
            assert!(!learning.made(0, None, true));
            let pause = (AGAIN_FIRST << n).min(AGAIN_MOST);
            assert!(!learning.is_due(pause - 1, 512) && learning.is_due(pause, 512));
        }
        assert!(learning.made(0, Some((1000, 700)), true) && learning.is_due(AGAIN_FIRST, 512));
    }
}
