//! What comes back soon was not worth folding: how much of a budget folding is given.
//!
//! A program that goes round and round in its memory leaves pages for just long enough to be folded, and then wants all of
//! them back. That is seen from how many of the pages that were folded came back soon.

/// A page that was stored for so many cold ages was worth storing; one that is back earlier came back soon.
pub const SOON: u64 = 30;

/// What was seen counts half after this time, ns.
const HALF_LIFE: u64 = 30_000_000_000;
/// The part of the budget that is left where everything comes back, so that it is seen when this changes.
const LEAST: u64 = 8;

/// Pages that were folded lately, and those of them that came back soon. Both are noted by what running totals have grown.
#[derive(Clone, Debug, Default)]
pub struct Returns {
    gone: u64,
    back: u64,
    halved_at: u64,
    gone_total: u64,
    back_total: u64,
}

impl Returns {
    /// Nothing seen; the running totals stand at `gone` and `back`.
    pub const fn new(gone: u64, back: u64) -> Returns {
        Returns { gone: 0, back: 0, halved_at: 0, gone_total: gone, back_total: back }
    }

    /// At `now`, so many pages were `gone` in all, and so many came `back` soon.
    pub fn note(&mut self, now: u64, gone: u64, back: u64) {
        let halvings = (now.saturating_sub(self.halved_at) / HALF_LIFE).min(63);
        if halvings > 0 {
            self.gone >>= halvings;
            self.back >>= halvings;
            self.halved_at = now;
        }
        self.gone = self.gone.saturating_add(gone.saturating_sub(self.gone_total));
        self.back = self.back.saturating_add(back.saturating_sub(self.back_total));
        (self.gone_total, self.back_total) = (gone, back);
    }

    /// What is left of a budget: the part of the folded pages that stay away, and an eighth of it at least.
    pub fn allowed(&self, budget: u64) -> u64 {
        if self.gone == 0 {
            return budget;
        }
        let stay = self.gone.saturating_sub(self.back);
        let part = u128::from(budget) * u128::from(stay) / u128::from(self.gone);
        (part as u64).max(budget / LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_away_has_the_whole_budget_and_what_all_comes_back_an_eighth() {
        let mut returns = Returns::new(50, 5);
        assert_eq!(returns.allowed(800), 800);
        returns.note(1, 1050, 5);
        assert_eq!(returns.allowed(800), 800);
        returns.note(2, 1050, 505);
        assert_eq!(returns.allowed(800), 400);
        returns.note(3, 1050, 1205);
        assert_eq!(returns.allowed(800), 100);
    }

    #[test]
    fn after_some_minutes_it_is_tried_again() {
        let mut returns = Returns::new(0, 0);
        let (mut now, mut gone) = (HALF_LIFE, 100_000);
        returns.note(now, gone, 100_000);
        assert_eq!(returns.allowed(800), 100);
        let mut minutes = 0;
        while returns.allowed(800) < 400 {
            now += 2 * HALF_LIFE;
            gone += 10_000;
            returns.note(now, gone, 100_000);
            minutes += 1;
        }
        assert!((2..5).contains(&minutes), "{minutes}");
        // A clock that jumps to the end of time forgets everything.
        returns.note(u64::MAX, gone, 100_000);
        assert_eq!(returns.allowed(u64::MAX), u64::MAX);
    }
}
