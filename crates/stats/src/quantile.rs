//! Quantiles of a sample.
//!
//! Two definitions, for two uses. A latency's percentile is a value that was really observed (nearest rank:
//! type 1 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician, 1996);
//! the median of a handful of run results is interpolated (their type 7, the one that R and NumPy default to).

/// The value at quantile `q` (0..=1, clamped) of an ascending sample by linear interpolation between
/// neighbours; `None` for an empty sample.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let share = place - below as f64;
    if share == 0.0 {
        return Some(sorted[below]);
    }
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

/// The interpolated median of a sample in any order; `None` for an empty one.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// The rank, counted from 1, of the smallest of `count` ascending values that at least the fraction `q` of
/// them does not exceed; `None` if there are none.
pub fn nearest_rank(count: u64, q: f64) -> Option<u64> {
    if count == 0 {
        return None;
    }
    let exact = q.clamp(0.0, 1.0) * count as f64;
    // A product such as 0.999 * 1000 comes out a hair above 999, which must not round up to the next rank.
    let rank = (exact - exact * 1e-12).ceil() as u64;
    Some(rank.clamp(1, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_interpolated_quantile_matches_worked_examples() {
        let sample = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&sample, 0.0), Some(1.0));
        assert_eq!(quantile(&sample, 0.5), Some(3.0));
        assert_eq!(quantile(&sample, 1.0), Some(8.0));
        assert_eq!(quantile(&sample, 0.25), Some(1.75));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_nearest_rank_of_a_thousand_values_is_exact_at_the_percentiles_that_we_report() {
        assert_eq!(nearest_rank(1000, 0.5), Some(500));
        assert_eq!(nearest_rank(1000, 0.99), Some(990));
        assert_eq!(nearest_rank(1000, 0.999), Some(999));
        assert_eq!(nearest_rank(1000, 1.0), Some(1000));
        assert_eq!(nearest_rank(3, 0.5), Some(2));
        assert_eq!(nearest_rank(0, 0.5), None);
    }

    proptest! {
        #[test]
        fn a_quantile_lies_within_the_sample_and_never_falls_as_q_grows(
            mut sample in prop::collection::vec(-1e9f64..1e9, 1..50), a in 0.0f64..=1.0, b in 0.0f64..=1.0,
        ) {
            sample.sort_by(f64::total_cmp);
            let (low, high) = (a.min(b), a.max(b));
            let (at_low, at_high) = (quantile(&sample, low).unwrap(), quantile(&sample, high).unwrap());
            prop_assert!(at_low <= at_high + 1e-6);
            prop_assert!(at_low >= sample[0] - 1e-6 && at_high <= sample[sample.len() - 1] + 1e-6);
        }

        #[test]
        fn at_least_the_fraction_q_lies_at_or_below_the_nearest_rank_and_less_below_it(
            count in 1u64..100_000, q in 0.0f64..=1.0,
        ) {
            let rank = nearest_rank(count, q).unwrap();
            prop_assert!(rank as f64 >= q * count as f64 * (1.0 - 1e-9));
            prop_assert!(rank == 1 || ((rank - 1) as f64) < q * count as f64);
        }
    }
}
