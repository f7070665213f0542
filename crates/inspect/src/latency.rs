//! Histograms of nanoseconds, copied from control pages and added up over processes.

use memfold_pager::control::{Histogram, BUCKETS};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// A histogram with the buckets of `memfold_pager::control::Histogram`.
#[derive(Clone, Debug)]
pub struct Latency {
    sum: u64,
    max: u64,
    buckets: Vec<u64>,
}

/// What JSON and tables show of a histogram. All but `count` are nanoseconds, 0 where `count` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many values there are.
    pub count: u64,
    /// Their mean.
    pub mean: u64,
    /// The median.
    pub p50: u64,
    /// 95 of 100 values do not exceed it.
    pub p95: u64,
    /// 99 of 100 values do not exceed it.
    pub p99: u64,
    /// 999 of 1000 values do not exceed it.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { sum: 0, max: 0, buckets: vec![0; BUCKETS] }
    }
}

impl Latency {
    /// Copies a histogram that its process may be writing to.
    pub fn copy(from: &Histogram) -> Latency {
        // Relaxed: statistics; a value recorded in between is in or not.
        Latency {
            sum: from.sum.load(Relaxed),
            max: from.max.load(Relaxed),
            buckets: from.buckets.iter().map(|b| u64::from(b.load(Relaxed))).collect(),
        }
    }

    /// Adds another process's values.
    pub fn add(&mut self, other: &Latency) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
        for (mine, its) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += its;
        }
    }

    /// The values that have come since `earlier`, of the same process. The largest of them is not known; it is no larger than the largest of all.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let buckets = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.saturating_sub(*then));
        Latency { sum: self.sum.saturating_sub(earlier.sum), max: self.max, buckets: buckets.collect() }
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// All of them together, ns.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Each value that there is, within 1/16, with how often; the smallest first.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(bucket, count)| (Histogram::value_of(bucket), *count))
    }

    /// The percentiles, each within 1/16 of the true value and none above the largest.
    pub fn percentiles(&self) -> Percentiles {
        let count = self.count();
        if count == 0 {
            return Percentiles::default();
        }
        let at = |q: f64| {
            let rank = ((count as f64 * q) as u64).min(count - 1);
            let mut seen = 0;
            let bucket = self.buckets.iter().position(|n| {
                seen += n;
                seen > rank
            });
            bucket.map_or(0, Histogram::value_of).min(self.max)
        };
        Percentiles {
            count,
            mean: self.sum / count,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: self.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Latency {
        let mut latency = Latency::default();
        for &v in values {
            latency.sum += v;
            latency.max = latency.max.max(v);
            latency.buckets[Histogram::bucket_of(v)] += 1;
        }
        latency
    }

    #[test]
    fn percentiles_of_a_sum_are_those_of_all_values_together() {
        let (fast, slow) = (vec![10_000; 98], vec![1_000_000; 2]);
        let mut sum = of(&fast);
        sum.add(&of(&slow));
        let p = sum.percentiles();
        assert_eq!((p.count, p.max), (100, 1_000_000));
        assert!(p.p50.abs_diff(10_000) < 10_000 / 16, "{}", p.p50);
        assert!(p.p99.abs_diff(1_000_000) < 1_000_000 / 16, "{}", p.p99);
        assert_eq!(p, of(&[fast, slow].concat()).percentiles());
    }

    #[test]
    fn values_that_came_later_are_those_that_were_not_there() {
        let (early, late) = (vec![10_000; 98], vec![1_000_000; 2]);
        let p = of(&[early.clone(), late].concat()).since(&of(&early)).percentiles();
        assert_eq!((p.count, p.mean), (2, 1_000_000));
        assert!(p.p50.abs_diff(1_000_000) < 1_000_000 / 16, "{}", p.p50);
        assert_eq!(of(&early).since(&of(&early)).percentiles().count, 0);
    }

    #[test]
    fn nothing_recorded_reads_as_zeros() {
        assert_eq!(Latency::default().percentiles(), Percentiles::default());
    }
}
