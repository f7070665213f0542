//! How large a share of the values reaches a given one: the complementary cumulative distribution.
//!
//! On logarithmic axes it shows the slowest thousandth as plainly as the median, which a histogram does not.

use crate::axis::Axis;
use crate::lines::{Line, Lines};
use memfold_stats::Histogram;

/// Draws for each distribution the share of values that are at least as large, over the value, as steps.
///
/// `values` describes the lower axis, which should be logarithmic; a value of 0 is then drawn as 1. A distribution
/// without values has no line.
pub fn ccdf(title: impl Into<String>, values: Axis, distributions: &[(String, &Histogram)]) -> Lines {
    let lines = distributions
        .iter()
        .filter(|(_, histogram)| histogram.count() > 0)
        .map(|(name, histogram)| Line {
            name: name.clone(),
            points: steps(histogram, values.is_logarithmic()),
        })
        .collect();
    Lines {
        title: title.into(),
        x: values,
        y: Axis::logarithmic("share of values at least this large"),
        lines,
    }
}

fn steps(histogram: &Histogram, logarithmic: bool) -> Vec<(f64, f64)> {
    let total = histogram.count() as f64;
    let mut left = histogram.count();
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (value, count) in histogram.iter() {
        let x = if logarithmic { value.max(1) } else { value } as f64;
        points.push((x, left as f64 / total));
        left -= count;
        // The share falls where the value ends, straight down.
        points.push((x, left as f64 / total));
    }
    // The last fall is to nothing, which a logarithmic axis does not have.
    points.pop();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_from_all_values_to_the_last_one() {
        let mut histogram = Histogram::default();
        [0, 5, 5, 9].into_iter().for_each(|value| histogram.record(value));
        let expected = [(1.0, 1.0), (1.0, 0.75), (5.0, 0.75), (5.0, 0.25), (9.0, 0.25)];
        assert_eq!(steps(&histogram, true), expected);
        let chart = ccdf("", Axis::logarithmic(""), &[("none".into(), &Histogram::default())]);
        assert!(chart.lines.is_empty());
    }
}
