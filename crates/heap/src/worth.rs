//! Whether it pays to look for blocks of one span among those that a thread frees of other heaps' spans.
//!
//! What it is: a count of how short the runs were that came of it. Where sizes are mixed, nearly each block is of another span than the one
//! before, and to begin and end a run for each takes half as long again as the free itself; then the thread does without for a while, and
//! looks again. What it is not: the runs ([`crate::parcel`]).

use crate::sync::Cell;

/// A run of so many blocks is named in no less room than its blocks one by one.
const SHORT: u32 = 2;

/// So many short runs more than there are blocks in long ones, and it does not pay.
const TOO_MANY: u32 = 32;

/// Blocks that go without being looked at until it is tried again: some thirty times as many as it takes to find out.
const PAUSE: u32 = 4096;

/// What became of looking for runs.
pub(crate) struct Worth {
    /// Short runs, less the blocks of long ones, not below 0.
    short: Cell<u32>,
    /// How many blocks more are not to be looked at.
    pause: Cell<u32>,
}

impl Worth {
    /// Nothing is known yet; all zero.
    pub(crate) const fn new() -> Worth {
        Worth { short: Cell::new(0), pause: Cell::new(0) }
    }

    /// Whether the block that is freed now is to be looked at; counts it.
    #[inline(always)]
    pub(crate) fn try_block(&self) -> bool {
        let left = self.pause.get();
        if left > 0 {
            self.pause.set(left - 1);
        }
        left == 0
    }

    /// A run ended, with so many blocks in it. Returns whether a pause begins.
    pub(crate) fn note(&self, count: u32) -> bool {
        let short = match count <= SHORT {
            true => self.short.get() + 1,
            false => self.short.get().saturating_sub(count),
        };
        let begins = short == TOO_MANY;
        self.short.set(if begins { 0 } else { short });
        if begins {
            self.pause.set(PAUSE);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_end_the_search_for_a_while_and_no_longer() {
        let worth = Worth::new();
        for round in 0..3 {
            let runs = (1..).find(|_| worth.note(1 + round % 2)).unwrap();
            assert_eq!(runs, TOO_MANY);
            assert!((0..PAUSE).all(|_| !worth.try_block()));
            assert!((0..3 * PAUSE).all(|_| worth.try_block()), "nothing was found out since");
        }
    }

    #[test]
    fn a_few_short_runs_among_long_ones_do_not_end_it() {
        let worth = Worth::new();
        for number in 0..100_000 {
            assert!(!worth.note(if number % 8 == 0 { 8 } else { 1 }));
        }
        assert!(worth.try_block());
    }
}
