//! The ratio of two arms that ran in turns.
//!
//! Runs that follow each other share the machine's mood, so each run of one arm is divided by the run of the
//! other arm beside it, and the median of these ratios is the result. Its 95 % interval is the percentile
//! bootstrap (Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics, 1979; Efron and
//! Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13): the pairs are drawn anew with
//! replacement, the median taken each time, and the middle 95 % of those medians is the interval.
//!
//! What it is not: a test of significance for tiny samples. Below [`LEAST_PAIRS`] pairs there is no interval
//! at all, and so never a difference.

use crate::quantile::{median, quantile};
use crate::rng::Rng;
use serde::Serialize;
use std::fmt;

/// The fewest pairs that get an interval. All of five pairs fall on one side of an equal median once in
/// sixteen times (2 · 2⁻⁵), more often than 95 % allows; six do so once in thirty-two.
pub const LEAST_PAIRS: usize = 6;

const RESAMPLES: usize = 4_000;

/// Where the true ratio lies with 95 % confidence.
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
    /// Its 95 % bootstrap interval; `None` below [`LEAST_PAIRS`] pairs.
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
    /// The ratio `numerator[i] / denominator[i]` over all pairs; `seed` fixes the bootstrap's draws.
    pub fn of(numerator: &[f64], denominator: &[f64], seed: u64) -> Result<Ratio, BadPairs> {
        if numerator.len() != denominator.len() {
            return Err(BadPairs::Uneven { numerator: numerator.len(), denominator: denominator.len() });
        }
        if let Some(&bad) = numerator.iter().chain(denominator).find(|v| !(v.is_finite() && **v > 0.0)) {
            return Err(BadPairs::Value(bad));
        }
        let ratios: Vec<f64> = numerator.iter().zip(denominator).map(|(a, b)| a / b).collect();
        let middle = median(&ratios).ok_or(BadPairs::Empty)?;
        let interval = median_interval(&ratios, seed);
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

/// The 95 % bootstrap interval of the median of `values`; `None` below [`LEAST_PAIRS`] of them.
pub fn median_interval(values: &[f64], seed: u64) -> Option<Interval> {
    (values.len() >= LEAST_PAIRS).then(|| bootstrap(values, seed))
}

fn bootstrap(ratios: &[f64], seed: u64) -> Interval {
    let mut rng = Rng::new(seed);
    let mut draw = vec![0.0; ratios.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for place in &mut draw {
                *place = ratios[rng.below(ratios.len() as u64) as usize];
            }
            draw.sort_by(f64::total_cmp);
            quantile(&draw, 0.5).unwrap_or(f64::NAN)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |q| quantile(&medians, q).unwrap_or(f64::NAN);
    Interval { low: at(0.025), high: at(0.975) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn equal_arms_do_not_differ() {
        let runs = [3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let ratio = Ratio::of(&runs, &runs, 1).unwrap();
        assert_eq!(ratio.median, 1.0);
        assert!(!ratio.differs);
    }

    #[test]
    fn an_arm_that_is_always_twice_the_other_differs() {
        let ours = [2.0, 4.2, 5.9, 8.0, 10.1, 12.0];
        let theirs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let ratio = Ratio::of(&ours, &theirs, 1).unwrap();
        let interval = ratio.interval.unwrap();
        assert!(ratio.differs && interval.low > 1.9 && interval.high < 2.2, "{ratio}");
    }

    #[test]
    fn five_pairs_are_too_few_to_call_a_difference() {
        let ratio = Ratio::of(&[2.0; 5], &[1.0; 5], 1).unwrap();
        assert_eq!((ratio.interval, ratio.differs), (None, false));
    }

    #[test]
    fn the_interval_holds_the_true_ratio_about_as_often_as_it_claims() {
        let mut rng = Rng::new(7);
        let mut noisy = |centre: f64| centre * (0.8 + 0.4 * rng.below(1 << 32) as f64 / f64::from(u32::MAX));
        let held = (0..400)
            .filter(|&trial| {
                let ours: Vec<f64> = (0..20).map(|_| noisy(10.0)).collect();
                let theirs: Vec<f64> = (0..20).map(|_| noisy(10.0)).collect();
                !Ratio::of(&ours, &theirs, trial).unwrap().differs
            })
            .count();
        // The percentile interval of a median of 20 is known to be a little narrow or wide, not by much.
        assert!((360..=399).contains(&held), "equal arms were called equal {held} times of 400");
    }

    #[test]
    fn pairs_that_cannot_be_divided_are_refused_with_their_value() {
        assert_eq!(Ratio::of(&[], &[], 1), Err(BadPairs::Empty));
        assert_eq!(Ratio::of(&[1.0], &[], 1), Err(BadPairs::Uneven { numerator: 1, denominator: 0 }));
        assert_eq!(Ratio::of(&[1.0], &[0.0], 1), Err(BadPairs::Value(0.0)));
        assert!(Ratio::of(&[f64::NAN], &[1.0], 1).is_err());
    }

    proptest! {
        #[test]
        fn the_interval_encloses_the_median_and_is_the_same_for_the_same_seed(
            pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), LEAST_PAIRS..20), seed: u64,
        ) {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let ratio = Ratio::of(&a, &b, seed).unwrap();
            let interval = ratio.interval.unwrap();
            prop_assert!(interval.low <= ratio.median && ratio.median <= interval.high);
            prop_assert_eq!(ratio, Ratio::of(&a, &b, seed).unwrap());
        }
    }
}
