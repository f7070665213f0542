//! Budgets of time: how much of a sliding window went, in waiting of the program or in work of the pager.

/// Length of the window, ns.
pub const WINDOW: u64 = 10_000_000_000;

/// A limit of a CPU budget that is none, millionths of one CPU.
pub const NO_LIMIT: u64 = 1_000_000;

/// A budget counts as broken at this multiple of its limit: of waiting, so much must not be repeated.
pub const BROKEN: u64 = 2;

const BUCKETS: usize = 20;
const BUCKET: u64 = WINDOW / BUCKETS as u64;

/// The last moment of the window, ns.
pub const MOMENT: u64 = 2 * BUCKET;

/// What was spent in the last ten seconds, in buckets of half a second. It is charged by what a running total has grown.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    buckets: [u64; BUCKETS],
    /// Number of the newest bucket since time 0.
    newest: u64,
    /// What the running total stood at when it was last looked at.
    total: u64,
}

impl Budget {
    /// An unused budget, of a running total that stands at `total` ns.
    pub const fn new(total: u64) -> Budget {
        Budget { buckets: [0; BUCKETS], newest: 0, total }
    }

    fn advance(&mut self, now: u64) {
        let current = now / BUCKET;
        let passed = current.saturating_sub(self.newest).min(BUCKETS as u64);
        for i in 0..passed {
            self.buckets[((current - i) % BUCKETS as u64) as usize] = 0;
        }
        self.newest = self.newest.max(current);
    }

    /// Charges what the running total has grown to `total` ns by, as spent at `now`. One that fell charges nothing.
    pub fn charge(&mut self, now: u64, total: u64) {
        self.advance(now);
        let spent = total.saturating_sub(self.total);
        self.total = total;
        let bucket = &mut self.buckets[(self.newest % BUCKETS as u64) as usize];
        *bucket = bucket.saturating_add(spent);
    }

    /// What the running total stood at when it was last charged, ns.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Spent within the window that ends at `now`, ns.
    pub fn used(&mut self, now: u64) -> u64 {
        self.advance(now);
        self.buckets.iter().fold(0, |sum, &b| sum.saturating_add(b))
    }

    /// Spent within the last [`MOMENT`], or at least half of it, ns.
    pub fn lately(&mut self, now: u64) -> u64 {
        self.advance(now);
        let bucket = |age: u64| self.buckets[(self.newest.wrapping_sub(age) % BUCKETS as u64) as usize];
        bucket(0).saturating_add(bucket(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn a_stall_leaves_the_window_after_ten_seconds() {
        let mut budget = Budget::new(100);
        budget.charge(1_000_000_000, 107);
        assert_eq!(budget.used(1_000_000_000 + WINDOW - BUCKET), 7);
        assert_eq!(budget.used(1_000_000_000 + WINDOW), 0);
    }

    #[test]
    fn a_total_that_begins_again_charges_what_it_grows_from_there() {
        let mut budget = Budget::new(0);
        for total in [40, 3, 5] {
            budget.charge(1_000_000_000, total);
        }
        assert_eq!((budget.used(1_000_000_000), budget.total()), (42, 5));
    }

    proptest! {
        #[test]
        fn the_window_never_undercounts_its_last_nine_and_a_half_seconds(steps in prop::collection::vec((0..3_000_000_000u64, 0..1000u64), 1..60)) {
            let mut budget = Budget::new(0);
            let mut all: Vec<(u64, u64)> = Vec::new();
            let (mut now, mut total) = (0, 0);
            for (gap, stall) in steps {
                now += gap;
                total += stall;
                budget.charge(now, total);
                all.push((now, stall));
                let within = |span: u64| all.iter().filter(|(t, _)| now - t < span).map(|(_, s)| s).sum::<u64>();
                let used = budget.used(now);
                prop_assert!(used >= within(WINDOW - BUCKET) && used <= within(WINDOW));
                let lately = budget.lately(now);
                prop_assert!(lately >= within(MOMENT - BUCKET) && lately <= within(MOMENT));
            }
        }
    }
}
