//! What a touch of folded memory costs the program now, from running totals.
//!
//! By the last few hundred touches: what the first ones cost says little, and an hour of busy CPUs, or an engine that was away for a minute, would count for as long as the
//! program runs.

/// A touch is taken to cost so much before any was, ns.
const AT_FIRST: u64 = 10_000;
/// So many make a sample.
const SAMPLE: u64 = 32;
/// A sample above that tells of something other than a touch, ns.
const MOST: u64 = 1_000_000;

/// A moving average.
#[derive(Clone, Debug)]
pub struct TouchCost {
    /// The totals at the last sample.
    waited: u64,
    touches: u64,
    average: u64,
    known: bool,
}

impl TouchCost {
    /// Nothing known: the running totals stand at `waited` ns and so many `touches`.
    pub const fn new(waited: u64, touches: u64) -> TouchCost {
        TouchCost { waited, touches, average: AT_FIRST, known: false }
    }

    /// The totals have grown to this.
    pub fn note(&mut self, waited: u64, touches: u64) {
        let count = touches.saturating_sub(self.touches);
        if count < SAMPLE {
            return;
        }
        let cost = (waited.saturating_sub(self.waited) / count).min(MOST);
        (self.waited, self.touches) = (waited, touches);
        // Many touches weigh as much as so many samples, up to all.
        let weight = (count / SAMPLE).min(8);
        self.average = if core::mem::replace(&mut self.known, true) {
            (self.average * (8 - weight) + cost * weight) / 8
        } else {
            cost
        };
    }

    /// What one costs, ns.
    pub fn get(&self) -> u64 {
        self.average.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_touches_cost_now() {
        let mut cost = TouchCost::new(500, 7);
        assert_eq!(cost.get(), AT_FIRST);
        cost.note(500 + 31 * 20_000, 7 + 31);
        assert_eq!(cost.get(), AT_FIRST, "too few to tell");
        let (mut waited, mut touches) = (500, 7);
        let mut go_on = |cost: &mut TouchCost, each: u64, times: u64| {
            for _ in 0..times {
                (waited, touches) = (waited + 32 * each, touches + 32);
                cost.note(waited, touches);
            }
            cost.get()
        };
        assert_eq!(go_on(&mut cost, 20_000, 1), 20_000);
        // A thread that waited for a minute for an engine is no touch of a minute, and is forgotten.
        assert_eq!(go_on(&mut cost, 60_000_000_000, 1), (20_000 * 7 + MOST) / 8);
        assert!(go_on(&mut cost, 20_000, 64) < 21_000);
        assert!(go_on(&mut cost, 80_000, 64) > 79_000);
    }

    #[test]
    fn many_at_once_weigh_more_and_totals_that_fell_say_nothing() {
        let mut cost = TouchCost::new(0, 0);
        cost.note(32 * 10_000, 32);
        cost.note(32 * 10_000 + 3_200 * 30_000, 32 + 3_200);
        assert_eq!(cost.get(), 30_000);
        cost.note(0, 0);
        assert_eq!(cost.get(), 30_000);
    }
}
