//! The feedback loop of [`MgLru`](super::mglru::MgLru): which tiers of the oldest generation are to be kept, judged by how
//! many of the pages that were evicted from each came back soon.
//!
//! What it is not: a full PID controller, although the kernel's documentation calls it one. It has the proportional term,
//! the present generation's share of refaults, and the integral one, an average that forgets half at each generation.

/// Levels of use that are told apart (`MAX_NR_TIERS`).
pub const TIERS: usize = 4;
/// Fewer refaults than these prove nothing (`MIN_LRU_BATCH`).
const FEW: u64 = 64;
/// A tier is kept if its share of refaults is more than so many times the first tier's: 3 to 2, for fluctuations.
const GAIN: (u128, u128) = (2, 3);

/// What became of the pages of one tier.
#[derive(Clone, Copy, Default)]
struct Tier {
    /// Came back soon after their eviction.
    refaulted: u64,
    /// Evicted, or kept although they were due.
    looked_at: u64,
}

/// The counters of the oldest generation, and those of the ones before it.
#[derive(Default)]
pub struct Refaults {
    now: [Tier; TIERS],
    before: [Tier; TIERS],
}

impl Refaults {
    /// A page of that tier came to the end of the oldest generation: it was evicted, or kept.
    pub fn looked_at(&mut self, tier: usize) {
        self.now[tier].looked_at += 1;
    }

    /// A page that was of that tier when it was evicted is asked for again, and soon.
    pub fn refaulted(&mut self, tier: usize) {
        self.now[tier].refaulted += 1;
    }

    /// The oldest generation is used up.
    pub fn next_generation(&mut self) {
        for (before, now) in self.before.iter_mut().zip(&mut self.now) {
            let now = core::mem::take(now);
            before.refaulted = (before.refaulted + now.refaulted) / 2;
            before.looked_at = (before.looked_at + now.looked_at) / 2;
        }
    }

    /// The highest tier whose pages may be evicted; those above it are kept.
    pub fn highest_evictable(&self) -> usize {
        let first = self.tier(0);
        (1..TIERS).find(|&tier| self.stands_out(first, self.tier(tier))).unwrap_or(TIERS) - 1
    }

    fn tier(&self, tier: usize) -> Tier {
        let (before, now) = (self.before[tier], self.now[tier]);
        Tier { refaulted: before.refaulted + now.refaulted, looked_at: before.looked_at + now.looked_at }
    }

    fn stands_out(&self, first: Tier, tier: Tier) -> bool {
        let [refaulted, looked_at] = [tier.refaulted, tier.looked_at].map(u128::from);
        let [base, base_of] = [first.refaulted + 1, first.looked_at + FEW].map(u128::from);
        tier.refaulted >= FEW && refaulted * base_of * GAIN.0 > base * looked_at * GAIN.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pages: [(u64, u64); TIERS]) -> Refaults {
        let now = pages.map(|(refaulted, looked_at)| Tier { refaulted, looked_at });
        Refaults { now, ..Refaults::default() }
    }

    #[test]
    fn a_tier_is_kept_only_when_many_of_its_pages_come_back_and_more_than_of_the_first() {
        let evictable = |pages| after(pages).highest_evictable();
        assert_eq!(evictable([(0, 0); TIERS]), 3);
        assert_eq!(evictable([(10, 1000), (63, 64), (0, 0), (0, 0)]), 3, "63 refaults are few");
        assert_eq!(evictable([(10, 1000), (64, 128), (0, 0), (0, 0)]), 0);
        assert_eq!(evictable([(500, 1000), (0, 0), (500, 1000), (0, 0)]), 3, "as many as of the first");
        assert_eq!(evictable([(100, 1000), (0, 0), (500, 1000), (0, 0)]), 1);
    }

    #[test]
    fn what_was_learnt_is_forgotten_by_halves() {
        let mut refaults = after([(0, 1000), (400, 500), (0, 0), (0, 0)]);
        let kept = (0..10).take_while(|_| {
            refaults.next_generation();
            refaults.highest_evictable() == 0
        });
        // 200, 100, then 50.
        assert_eq!(kept.count(), 2);
    }
}
