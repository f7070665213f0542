//! Periods: when what recurs is likely to recur next.
//!
//! Each recurrence says how far it is from the one before. Where such distances agree, the next is expected one further. The length follows
//! slowly, so that it may drift; how far recurrences were off tells how long before its time the next is expected. One that is left out moves
//! nothing, and one that comes between two others is passed over. Two that do not come where they were expected end the period, and after each
//! disappointment twice as many have to agree before anything is expected again.
//!
//! What it is not: a search for several periods in one sequence. Who recurs by two timers is known by none of them, unless they are told apart
//! before ([`crate::foresight`] does so by pages).
//!
//! Invariants: all-zero bytes know nothing; nothing is expected more often than once in [`SHORTEST`].

/// Lengths that are worth knowing, ns.
pub const SHORTEST: u64 = 200_000_000;
/// See there.
pub const LONGEST: u64 = 2 * 3600 * 1_000_000_000;
/// So many distances have to agree at first.
const ENOUGH: u8 = 2;
/// They are counted up to here.
const MOST: u8 = 64;
/// So many times that number doubles at most.
const MOST_DOUBT: u8 = 4;
/// Recurrences that are left out in a row and do not hide the period.
const LEFT_OUT: u64 = 3;
/// So many in a row that were expected and did not come end it.
const MISSES: u8 = 2;
/// What bringing something before its time takes, and a busy machine adds, ns.
const AHEAD: u64 = 20_000_000;

/// See the module. Times are of any monotonic clock, ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Period {
    /// When it last came, or should have.
    last: u64,
    /// 0 while nothing is known.
    length: u64,
    /// How far recurrences were off lately, at most.
    jitter: u64,
    /// Distances in a row that agree.
    agreed: u8,
    missed: u8,
    doubt: u8,
}

/// When the next is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// From here on.
    pub from: u64,
    /// Who has not come by then does not come.
    pub until: u64,
}

impl Period {
    /// It came for the first time at `now`.
    pub const fn begun(now: u64) -> Period {
        Period { last: now, length: 0, jitter: 0, agreed: 0, missed: 0, doubt: 0 }
    }

    /// It came at `now`.
    pub fn came(&mut self, now: u64) {
        let since = now.saturating_sub(self.last);
        let beats = since.saturating_add(self.length / 2).checked_div(self.length).unwrap_or(0);
        let off = since.abs_diff(beats.saturating_mul(self.length));
        if (1..=LEFT_OUT + 1).contains(&beats) && off <= self.tolerance() {
            self.jitter = off.max(self.jitter - self.jitter / 8);
            self.length = (3 * self.length + since / beats) / 4;
            self.agreed = (self.agreed + 1).min(MOST);
            if self.agreed == MOST {
                self.doubt = 0;
            }
        } else if self.agreed > ENOUGH && beats <= 1 {
            // For another reason than its own. It keeps its time.
            self.agreed -= 1;
            return;
        } else {
            self.length = if (SHORTEST..=LONGEST).contains(&since) { since } else { 0 };
            (self.agreed, self.jitter) = (u8::from(self.length != 0), 0);
        }
        (self.last, self.missed) = (now, 0);
    }

    /// It did not come where it was expected; `disappointed` where something was done for it.
    pub fn missed(&mut self, disappointed: bool) {
        self.last = self.last.saturating_add(self.length);
        self.missed += 1;
        if disappointed {
            self.agreed = self.agreed.saturating_sub(1);
        }
        if self.missed >= MISSES {
            self.doubt = (self.doubt + u8::from(disappointed)).min(MOST_DOUBT);
            (self.length, self.agreed, self.missed) = (0, 0, 0);
        }
    }

    /// When the next is expected, if it is.
    pub fn expected(&self) -> Option<Expected> {
        if self.length < SHORTEST || self.agreed < ENOUGH << self.doubt {
            return None;
        }
        let next = self.last.saturating_add(self.length);
        let ahead = (AHEAD + self.length / 64 + 2 * self.jitter).min(self.length / 4);
        Some(Expected { from: next - ahead, until: next.saturating_add(self.tolerance()) })
    }

    /// How far from its time one may come.
    fn tolerance(&self) -> u64 {
        self.length / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    /// What came of a sequence: of how many it was expected when they came, and how often in vain.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Sum {
        hits: usize,
        misses: usize,
    }

    /// Has it come at these times, and then not for ten minutes more.
    fn run(times: impl IntoIterator<Item = u64>) -> (Sum, Vec<bool>) {
        let (mut sum, mut hits) = (Sum::default(), Vec::new());
        let mut period: Option<Period> = None;
        let mut last = 0;
        let mut until = |period: &mut Period, now: u64| {
            while let Some(expected) = period.expected().filter(|expected| expected.until < now) {
                assert!(expected.from <= expected.until);
                sum.misses += 1;
                period.missed(true);
            }
        };
        for now in times {
            last = now;
            let Some(known) = period.as_mut() else {
                period = Some(Period::begun(now));
                hits.push(false);
                continue;
            };
            until(known, now);
            hits.push(known.expected().is_some_and(|expected| expected.from <= now));
            known.came(now);
        }
        if let Some(period) = period.as_mut() {
            until(period, last + 600 * SECOND);
        }
        sum.hits = hits.iter().filter(|&&hit| hit).count();
        (sum, hits)
    }

    #[test]
    fn what_came_three_times_is_expected_the_fourth_time() {
        for length in [SHORTEST, SECOND, 60 * SECOND, 3600 * SECOND] {
            let (_, hits) = run((0..10).map(|n| SECOND + n * length));
            assert_eq!(hits[..3], [false; 3]);
            assert_eq!(hits[3..], [true; 7]);
        }
    }

    #[test]
    fn a_period_that_ends_is_expected_twice_more() {
        let (sum, _) = run((0..50).map(|n| SECOND + n * SECOND));
        assert_eq!(sum, Sum { hits: 47, misses: 2 });
    }

    #[test]
    fn one_that_is_left_out_costs_one_in_vain_and_the_next_is_expected() {
        let (sum, hits) = run((0..20).filter(|n| *n != 10).map(|n| SECOND + n * SECOND));
        assert_eq!(hits[3..], [true; 16]);
        assert_eq!(sum, Sum { hits: 16, misses: 1 + 2 });
    }

    #[test]
    fn one_between_two_others_does_not_move_them() {
        let mut times: Vec<u64> = (0..20).map(|n| SECOND + n * SECOND).collect();
        times.insert(11, SECOND + 10 * SECOND + SECOND / 2);
        let (_, hits) = run(times);
        assert_eq!(hits[3..11], [true; 8]);
        assert_eq!(hits[11..], [[false].as_slice(), &[true; 9]].concat());
    }

    #[test]
    fn a_length_that_drifts_is_followed() {
        let mut now = SECOND;
        let times = (0..100).map(|n| {
            now += SECOND + n * 10_000_000;
            now
        });
        let (sum, _) = run(times);
        assert!(sum.hits >= 95 && sum.misses <= 2, "{sum:?}");
    }

    #[test]
    fn who_is_told_nothing_for_hours_expects_nothing() {
        let mut period = Period::begun(SECOND);
        (1..5).for_each(|n| period.came(SECOND + n * SECOND));
        assert!(period.expected().is_some());
        // A program that was stopped meanwhile.
        period.missed(false);
        period.missed(false);
        assert_eq!((period.expected(), period.doubt), (None, 0));
    }

    proptest! {
        #[test]
        fn with_some_jitter_nearly_all_are_expected(
            length in SHORTEST..600 * SECOND,
            noise in prop::collection::vec(0u64..1000, 40),
        ) {
            // A twentieth of the length at most, around times that are kept.
            let times = noise.iter().enumerate().map(|(n, noise)| (1 + n as u64) * length + length / 20 * noise / 1000);
            let (sum, _) = run(times);
            prop_assert!(sum.hits >= 30, "{sum:?}");
            prop_assert!(sum.misses <= 4, "{sum:?}");
        }

        #[test]
        fn what_comes_at_any_time_is_expected_in_vain_less_often_than_it_comes(
            pauses in prop::collection::vec(SHORTEST..20 * SECOND, 200),
        ) {
            let mut now = 0;
            let (sum, _) = run(pauses.iter().map(|pause| { now += pause; now }));
            prop_assert!(sum.misses <= 40, "{sum:?}");
        }

        #[test]
        fn no_times_make_it_fail(times in prop::collection::vec(any::<u64>(), 50), missed in any::<u64>()) {
            let mut period = Period::begun(times[0]);
            for (n, &now) in times.iter().enumerate() {
                if missed >> n & 1 == 0 {
                    period.came(now);
                } else {
                    period.missed(n % 2 == 0);
                }
                if let Some(expected) = period.expected() {
                    prop_assert!(expected.from <= expected.until);
                }
            }
        }
    }
}
