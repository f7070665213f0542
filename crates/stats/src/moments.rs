//! Mean and spread of a sample.

use serde::Serialize;

/// Mean, standard deviation and extremes of a sample, in the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moments {
    /// How many values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (divisor `count - 1`); 0 for one value.
    pub sd: f64,
    /// Coefficient of variation, `sd / |mean|`; `None` where the mean is 0.
    pub cv: Option<f64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Moments {
    /// Of a sample in any order; `None` for an empty one.
    ///
    /// One pass by Welford's recurrence ("Note on a Method for Calculating Corrected Sums of Squares and
    /// Products", Technometrics, 1962), which does not lose digits when the mean is large beside the spread.
    pub fn of(values: &[f64]) -> Option<Moments> {
        if values.is_empty() {
            return None;
        }
        let (mut mean, mut squares) = (0.0, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for (seen, &value) in values.iter().enumerate() {
            let off = value - mean;
            mean += off / (seen + 1) as f64;
            squares += off * (value - mean);
            min = min.min(value);
            max = max.max(value);
        }
        let sd = if values.len() > 1 { (squares / (values.len() - 1) as f64).sqrt() } else { 0.0 };
        let cv = (mean != 0.0).then(|| sd / mean.abs());
        Some(Moments { count: values.len(), mean, sd, cv, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_moments_of_a_worked_example_are_right() {
        let moments = Moments::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(moments.mean, 5.0);
        assert!((moments.sd - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((moments.min, moments.max), (2.0, 9.0));
        assert!(Moments::of(&[]).is_none());
        assert!(Moments::of(&[0.0, 0.0]).unwrap().cv.is_none());
    }

    proptest! {
        #[test]
        fn shifting_a_sample_moves_its_mean_and_leaves_its_spread(
            sample in prop::collection::vec(-1e3f64..1e3, 2..40), shift in -1e6f64..1e6,
        ) {
            let shifted: Vec<f64> = sample.iter().map(|v| v + shift).collect();
            let (a, b) = (Moments::of(&sample).unwrap(), Moments::of(&shifted).unwrap());
            prop_assert!((a.mean + shift - b.mean).abs() < 1e-6);
            prop_assert!((a.sd - b.sd).abs() < 1e-6);
        }
    }
}
