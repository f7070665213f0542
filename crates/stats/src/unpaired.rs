//! Two samples without pairs: how far the mean of each is known, and whether their difference can be chance.

use crate::{Interval, Moments, Rng};
use serde::Serialize;

/// Quantile 0.975 of Student's t distribution with 1 to 30 degrees of freedom (Student, 1908); the normal one beyond.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const NORMAL: f64 = 1.960;
/// Most values in both samples for which all splits are looked at: 184 756 of them.
const EXACT: usize = 20;
/// Random splits looked at beyond that.
const SPLITS: usize = 20_000;

/// The 95 % confidence interval of the mean of values that are about normal (Student's); `None` below two values.
pub fn mean_interval(values: &[f64]) -> Option<Interval> {
    let moments = Moments::of(values).filter(|m| m.count > 1)?;
    let t = T.get(moments.count - 2).copied().unwrap_or(NORMAL);
    let reach = t * moments.sd / (moments.count as f64).sqrt();
    Some(Interval { low: moments.mean - reach, high: moments.mean + reach })
}

/// What separates two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The mean of the first over that of the second; `None` where that is 0.
    pub ratio: Option<f64>,
    /// How often a random split of all values into samples of these lengths has means at least as far apart.
    pub p: f64,
    /// Whether that is less than one in twenty.
    pub differs: bool,
}

impl Difference {
    /// Between two samples, by the permutation test of their means (Fisher, 1935): over all splits of up to 20 values, over
    /// random ones, from `seed`, of more. `None` if one is empty. Fewer than four values in each cannot differ.
    pub fn of(a: &[f64], b: &[f64], seed: u64) -> Option<Difference> {
        let (first, second) = (Moments::of(a)?.mean, Moments::of(b)?.mean);
        let all: Vec<f64> = a.iter().chain(b).copied().collect();
        let sum: f64 = all.iter().sum();
        let apart = |part: f64| (part / a.len() as f64 - (sum - part) / b.len() as f64).abs();
        // Sums in another order differ in their last digits.
        let least = (first - second).abs() * (1.0 - 1e-9);
        let p = if all.len() <= EXACT {
            let splits = (0u32..1 << all.len()).filter(|split| split.count_ones() as usize == a.len());
            let (mut far, mut count) = (0u32, 0u32);
            for split in splits {
                let part: f64 =
                    all.iter().enumerate().filter(|(n, _)| split >> n & 1 == 1).map(|(_, v)| v).sum();
                far += u32::from(apart(part) >= least);
                count += 1;
            }
            f64::from(far) / f64::from(count)
        } else {
            let mut rng = Rng::new(seed);
            let mut pool = all.clone();
            let mut far = 1;
            for _ in 0..SPLITS {
                for place in 0..a.len() {
                    let other = place + rng.below((pool.len() - place) as u64) as usize;
                    pool.swap(place, other);
                }
                far += usize::from(apart(pool[..a.len()].iter().sum()) >= least);
            }
            far as f64 / (SPLITS + 1) as f64
        };
        let ratio = (second != 0.0).then(|| first / second);
        Some(Difference { ratio, p, differs: p < 0.05 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_do_not_overlap_differ_from_four_values_on() {
        let low = [1.0, 2.0, 3.0, 4.0, 5.0];
        let high = [11.0, 12.0, 13.0, 14.0, 15.0];
        let difference = Difference::of(&high, &low, 1).unwrap();
        // Two of 252 splits are as far apart.
        assert!((difference.p - 2.0 / 252.0).abs() < 1e-12 && difference.differs);
        assert_eq!(difference.ratio, Some(13.0 / 3.0));
        assert!(!Difference::of(&high[..3], &low[..3], 1).unwrap().differs);
        assert!(Difference::of(&high[..4], &low[..4], 1).unwrap().differs);
    }

    #[test]
    fn equal_samples_are_within_noise() {
        let values = [3.0, 1.0, 2.0, 5.0, 4.0];
        assert_eq!(Difference::of(&values, &values, 1).unwrap().p, 1.0);
        assert_eq!(
            Difference::of(&[0.0; 5], &[0.0; 5], 1).unwrap(),
            Difference { ratio: None, p: 1.0, differs: false }
        );
        assert_eq!(Difference::of(&[], &values, 1), None);
    }

    #[test]
    fn large_samples_are_judged_by_random_splits_that_the_seed_fixes() {
        let low: Vec<f64> = (0..30).map(f64::from).collect();
        let high: Vec<f64> = low.iter().map(|v| v + 20.0).collect();
        let difference = Difference::of(&high, &low, 7).unwrap();
        assert!(difference.differs && difference == Difference::of(&high, &low, 7).unwrap());
    }

    #[test]
    fn the_interval_of_a_mean_is_students() {
        let interval = mean_interval(&[2.0, 4.0, 6.0]).unwrap();
        // 4 plus and minus 4.303 times 2 over the root of 3.
        assert!(
            (interval.high - 8.9687).abs() < 1e-3 && (interval.low + 0.9687).abs() < 1e-3,
            "{interval:?}"
        );
        assert_eq!(mean_interval(&[1.0]), None);
    }
}
