//! The ratio of two arms that ran in turns.
//!
//! Runs that follow each other share the machine's mood, so each run of one arm is divided by the run of the
//! other arm beside it, and the median of these ratios is the result. Its interval is that of order statistics (Thompson,
//! "On Confidence Ranges for the Median", Annals of Mathematical Statistics, 1936): each ratio lies above the true median
//! as often as below, so how many do is known exactly, and the interval reaches from the k-th least to the k-th greatest
//! of them, with the greatest k that leaves the true one outside in no more than 5 % of all experiments. It holds for
//! every distribution. (A percentile bootstrap of seven values leaves it outside in 12.5 %.)
//!
//! What it is not: a test of significance for tiny samples. Below [`LEAST_PAIRS`] pairs there is no interval
//! at all, and so never a difference; from six to eight it is from the least ratio to the greatest.

use crate::quantile::median;
use serde::Serialize;
use std::fmt;

/// The fewest pairs that get an interval. All of five pairs fall on one side of an equal median once in
/// sixteen times (2 · 2⁻⁵), more often than 95 % allows; six do so once in thirty-two.
pub const LEAST_PAIRS: usize = 6;

/// Most values whose binomial tail is summed up; beyond, it is a normal one.
const SUMMED: usize = 1000;

/// Where the true ratio lies with at least 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Median of the ratios of pairs, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median ratio; dimensionless.
    pub median: f64,
    /// Its 95 % interval; `None` below [`LEAST_PAIRS`] pairs.
    pub interval: Option<Interval>,
    /// How many pairs.
    pub pairs: usize,
    /// Whether the interval excludes 1.
    pub differs: bool,
}

/// Why a ratio cannot be formed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BadPairs {
    /// There are no pairs.
    Empty,
    /// The arms have different numbers of runs.
    Uneven {
        /// Runs of the arm above the line.
        numerator: usize,
        /// Runs of the arm below the line.
        denominator: usize,
    },
    /// A value is not a positive finite number.
    Value(f64),
}

impl fmt::Display for BadPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadPairs::Empty => write!(f, "a ratio needs at least one pair of runs, and there is none"),
            BadPairs::Uneven { numerator, denominator } => {
                write!(f, "a ratio needs as many runs of one arm as of the other, not {numerator} and {denominator}")
            }
            BadPairs::Value(v) => write!(f, "a ratio needs positive finite values, and {v} is not one"),
        }
    }
}

impl std::error::Error for BadPairs {}

impl Ratio {
    /// The ratio `numerator[i] / denominator[i]` over all pairs.
    pub fn of(numerator: &[f64], denominator: &[f64]) -> Result<Ratio, BadPairs> {
        if numerator.len() != denominator.len() {
            return Err(BadPairs::Uneven { numerator: numerator.len(), denominator: denominator.len() });
        }
        if let Some(&bad) = numerator.iter().chain(denominator).find(|v| !(v.is_finite() && **v > 0.0)) {
            return Err(BadPairs::Value(bad));
        }
        let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(a, b)| a / b).collect();
        let middle = median(&ratios).ok_or(BadPairs::Empty)?;
        let interval = median_interval(&ratios);
        let differs = interval.is_some_and(|i| i.low > 1.0 || i.high < 1.0);
        Ok(Ratio { median: middle, interval, pairs: ratios.len(), differs })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interval {
            Some(Interval { low, high }) => {
                write!(
                    f,
                    "{:.3} [{low:.3}, {high:.3}]{}",
                    self.median,
                    if self.differs { "" } else { " (no difference)" }
                )
            }
            None => write!(f, "{:.3} ({} pairs: too few for an interval)", self.median, self.pairs),
        }
    }
}

/// The 95 % interval of the median of what `values` are drawn from; `None` below [`LEAST_PAIRS`] of them.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let outermost = rank(values.len()).checked_sub(1)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Interval { low: sorted[outermost], high: sorted[values.len() - 1 - outermost] })
}

/// The greatest k for which fewer than k of `count` values lie on one side of their true median in at most 2.5 % of cases; 0 where
/// even all of them lie there more often.
fn rank(count: usize) -> usize {
    if count > SUMMED {
        return (count as f64 / 2.0 - 1.96 * (count as f64).sqrt() / 2.0) as usize;
    }
    let (mut below, mut tail, mut exactly) = (0, 0.0, 0.5f64.powi(count as i32));
    while below < count && 2.0 * (tail + exactly) <= 0.05 {
        tail += exactly;
        exactly *= (count - below) as f64 / (below + 1) as f64;
        below += 1;
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn equal_arms_do_not_differ() {
        let runs = [3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let ratio = Ratio::of(&runs, &runs).unwrap();
        assert_eq!(ratio.median, 1.0);
        assert!(!ratio.differs);
    }

    #[test]
    fn an_arm_that_is_always_twice_the_other_differs() {
        let ours = [2.0, 4.2, 5.9, 8.0, 10.1, 12.0];
        let theirs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let ratio = Ratio::of(&ours, &theirs).unwrap();
        let interval = ratio.interval.unwrap();
        assert!(ratio.differs && interval.low > 1.9 && interval.high < 2.2, "{ratio}");
    }

    #[test]
    fn five_pairs_are_too_few_to_call_a_difference() {
        let ratio = Ratio::of(&[2.0; 5], &[1.0; 5]).unwrap();
        assert_eq!((ratio.interval, ratio.differs), (None, false));
    }

    #[test]
    fn equal_arms_are_called_different_in_no_more_than_one_experiment_of_twenty() {
        let mut rng = Rng::new(7);
        for pairs in [6, 7, 8, 9, 12, 20, 40] {
            let mut noisy = || 8.0 + 4.0 * rng.below(1 << 32) as f64 / f64::from(u32::MAX);
            let mut runs = || (0..pairs).map(|_| noisy()).collect::<Vec<_>>();
            let differ = (0..4000).filter(|_| Ratio::of(&runs(), &runs()).unwrap().differs).count();
            // What each number of pairs really has is below 200; with chance on top, three standard deviations.
            assert!((10..=240).contains(&differ), "of {pairs} pairs: {differ} of 4000");
        }
    }

    #[test]
    fn one_of_seven_on_the_other_side_is_no_difference() {
        let ratios = [0.90, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07];
        assert!(!Ratio::of(&ratios, &[1.0; 7]).unwrap().differs);
        assert_eq!(median_interval(&ratios), Some(Interval { low: 0.90, high: 1.07 }));
    }

    #[test]
    fn ranks_are_those_of_the_binomial_tables() {
        let known =
            [(5, 0), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (30, 10), (100, 40), (1000, 469)];
        known.iter().for_each(|&(count, k)| assert_eq!(rank(count), k, "of {count}"));
        assert!(rank(1001).abs_diff(rank(1000)) <= 1 && rank(100_000) > 49_000);
    }

    #[test]
    fn pairs_that_cannot_be_divided_are_refused_with_their_value() {
        assert_eq!(Ratio::of(&[], &[]), Err(BadPairs::Empty));
        assert_eq!(Ratio::of(&[1.0], &[]), Err(BadPairs::Uneven { numerator: 1, denominator: 0 }));
        assert_eq!(Ratio::of(&[1.0], &[0.0]), Err(BadPairs::Value(0.0)));
        assert!(Ratio::of(&[f64::NAN], &[1.0]).is_err());
    }

    proptest! {
        #[test]
        fn the_interval_encloses_the_median(
            pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), LEAST_PAIRS..20),
        ) {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let ratio = Ratio::of(&a, &b).unwrap();
            let interval = ratio.interval.unwrap();
            prop_assert!(interval.low <= ratio.median && ratio.median <= interval.high);
        }
    }
}
