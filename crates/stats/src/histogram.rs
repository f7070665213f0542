//! A histogram that loses nothing: how often each value occurred.
//!
//! Latencies in whole nanoseconds repeat so much that a million samples make some thousand distinct values;
//! keeping each costs little, and quantiles are exact instead of within a bucket.

use crate::quantile::nearest_rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts by value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Histogram {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

/// The percentiles that every latency report has, in the unit of the values (nanoseconds for times).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        *self.counts.entry(value).or_insert(0) += 1;
        self.total += 1;
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (&value, &count) in &other.counts {
            *self.counts.entry(value).or_insert(0) += count;
        }
        self.total += other.total;
    }

    /// What was counted since `earlier`, a state of this histogram in the past.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = |value| earlier.counts.get(&value).copied().unwrap_or(0);
        let newer = self.counts.iter().map(|(&value, &count)| (value, count.saturating_sub(before(value))));
        Histogram::from(newer.filter(|(_, count)| *count > 0).collect::<Vec<_>>())
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The smallest value that at least the fraction `q` of values does not exceed; `None` if there are none.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = nearest_rank(self.total, q)?;
        let mut seen = 0;
        self.counts.iter().find_map(|(&value, &count)| {
            seen += count;
            (seen >= rank).then_some(value)
        })
    }

    /// Arithmetic mean; `None` if there are no values.
    pub fn mean(&self) -> Option<f64> {
        let sum: u128 = self.counts.iter().map(|(&v, &n)| u128::from(v) * u128::from(n)).sum();
        (self.total > 0).then(|| sum as f64 / self.total as f64)
    }

    /// The usual percentiles; `None` if there are no values.
    pub fn quantiles(&self) -> Option<Quantiles> {
        Some(Quantiles {
            count: self.total,
            mean: self.mean()?,
            p50: self.quantile(0.5)?,
            p95: self.quantile(0.95)?,
            p99: self.quantile(0.99)?,
            p999: self.quantile(0.999)?,
            max: self.quantile(1.0)?,
        })
    }

    /// Each value with its count, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().map(|(&value, &count)| (value, count))
    }
}

impl From<Vec<(u64, u64)>> for Histogram {
    fn from(pairs: Vec<(u64, u64)>) -> Histogram {
        let mut histogram = Histogram::default();
        for (value, count) in pairs {
            *histogram.counts.entry(value).or_insert(0) += count;
            histogram.total += count;
        }
        histogram
    }
}

impl From<Histogram> for Vec<(u64, u64)> {
    fn from(histogram: Histogram) -> Vec<(u64, u64)> {
        histogram.counts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|&v| histogram.record(v));
        histogram
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        assert_eq!(Histogram::default().quantiles(), None);
    }

    proptest! {
        #[test]
        fn its_quantiles_are_those_of_the_sorted_sample(
            mut values in prop::collection::vec(0u64..5000, 1..300), q in 0.0f64..=1.0,
        ) {
            let histogram = of(&values);
            values.sort_unstable();
            let rank = nearest_rank(values.len() as u64, q).unwrap() as usize;
            prop_assert_eq!(histogram.quantile(q), Some(values[rank - 1]));
        }

        #[test]
        fn merging_equals_recording_everything_in_one(
            a in prop::collection::vec(0u64..50, 0..50), b in prop::collection::vec(0u64..50, 0..50),
        ) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(merged, of(&[a, b].concat()));
        }

        #[test]
        fn what_came_since_an_earlier_state_is_what_was_added(
            a in prop::collection::vec(0u64..50, 0..50), b in prop::collection::vec(0u64..50, 0..50),
        ) {
            prop_assert_eq!(of(&[a.clone(), b.clone()].concat()).since(&of(&a)), of(&b));
        }

        #[test]
        fn json_brings_back_the_same_histogram(a in prop::collection::vec(0u64..50, 0..50)) {
            let text = serde_json::to_string(&of(&a)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), of(&a));
        }
    }
}
