//! Fairness as figures.
//!
//! A tenant's *progress* is its throughput beside the others over its throughput alone, at most 1: a tenant that gains
//! from a remedy is no injustice to itself. Its *slowdown* is the inverse of the uncapped ratio.
//!
//! Source: Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in
//! Shared Computer Systems", DEC-TR-301, 1984.

/// Jain's index of fairness of the progress of tenants: 1 if all are alike, 1/n if one of n has everything. `None`
/// without tenants, or if none gets anywhere.
pub fn jain(progress: &[f64]) -> Option<f64> {
    let capped: Vec<f64> = progress.iter().map(|share| share.clamp(0.0, 1.0)).collect();
    let (sum, squares) = capped.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (capped.len() as f64 * squares))
}

/// The largest slowdown; `None` without tenants. A tenant that stands still is slowed down infinitely.
pub fn max_slowdown(slowdowns: &[f64]) -> Option<f64> {
    slowdowns.iter().copied().max_by(f64::total_cmp)
}

/// The improvement from `direct` to `cached` in per cent, where more is better.
pub fn improvement(cached: f64, direct: f64) -> f64 {
    (cached - direct) / direct * 100.0
}

/// The improvement from `direct` to `cached` in per cent, where less is better.
pub fn improvement_of_less(cached: f64, direct: f64) -> f64 {
    (direct - cached) / direct * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_examples_come_out_right() {
        assert_eq!(jain(&[1.0, 1.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0]), Some(0.5));
        // (0.5 + 1)² / (2 · (0.25 + 1))
        assert!((jain(&[0.5, 1.0]).unwrap() - 0.9).abs() < 1e-12);
        assert_eq!(jain(&[1.0, 7.0]), Some(1.0), "a gain is no injustice");
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(max_slowdown(&[1.2, 4.0, 0.9]), Some(4.0));
        assert_eq!(max_slowdown(&[]), None);
    }

    #[test]
    fn the_improvements_are_those_of_the_benchmark_s_example() {
        let close = |a: f64, b: f64| (a - b).abs() < 0.06;
        assert!(close(improvement(1_781_355.0, 1_615_500.0), 10.3));
        assert!(close(improvement(1199.0, 12_518.0), -90.4));
        assert!(close(improvement_of_less(833.9, 79.6), -947.6));
    }

    proptest! {
        #[test]
        fn the_index_lies_between_one_nth_and_one_and_does_not_know_the_order(
            mut progress in prop::collection::vec(0.001f64..1.0, 1..8),
        ) {
            let index = jain(&progress).unwrap();
            prop_assert!(index >= 1.0 / progress.len() as f64 - 1e-9 && index <= 1.0 + 1e-9);
            progress.reverse();
            prop_assert!((jain(&progress).unwrap() - index).abs() < 1e-9);
        }
    }
}
