//! Figures over the runs of an arm: medians, their intervals, and ratios to another arm.

use memfold_stats::{median_interval, quantile, BadPairs, Histogram, Interval, Ratio};

/// A run, as figures see it.
pub trait Ran {
    /// Of which arm it is, on what.
    type Place<'a>: Copy + PartialEq
    where
        Self: 'a;

    /// Its place.
    fn place(&self) -> Self::Place<'_>;

    /// Number of the repeat, from 0.
    fn repeat(&self) -> usize;
}

/// The runs of one place, by repeat.
pub fn of<'a, R: Ran>(runs: &'a [R], place: R::Place<'a>) -> Vec<&'a R> {
    let mut own: Vec<&R> = runs.iter().filter(|run| run.place() == place).collect();
    own.sort_by_key(|run| run.repeat());
    own
}

/// One figure of the runs of a place, by repeat.
pub fn column<'a, R: Ran>(runs: &'a [R], place: R::Place<'a>, figure: impl Fn(&R) -> f64) -> Vec<f64> {
    of(runs, place).into_iter().map(figure).collect()
}

/// The median of a figure; `None` where the place has no run.
pub fn median<'a, R: Ran>(runs: &'a [R], place: R::Place<'a>, figure: impl Fn(&R) -> f64) -> Option<f64> {
    memfold_stats::median(&column(runs, place, figure))
}

/// All that the runs of a place counted, together.
pub fn pooled<'a, R: Ran>(runs: &'a [R], place: R::Place<'a>, of: impl Fn(&R) -> &Histogram) -> Histogram {
    let mut all = Histogram::default();
    runs.iter().filter(|run| run.place() == place).for_each(|run| all.merge(of(run)));
    all
}

/// The values of a figure in the repeats in which both places have one above 0: ours and theirs, pair by pair.
pub fn pairs<'a, R: Ran>(
    runs: &'a [R],
    ours: R::Place<'a>,
    theirs: R::Place<'a>,
    figure: impl Fn(&R) -> Option<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let value = |run: &R| figure(run).filter(|value| value.is_finite() && *value > 0.0);
    let base = of(runs, theirs);
    let beside =
        |run: &R| base.iter().find(|other| other.repeat() == run.repeat()).and_then(|other| value(other));
    of(runs, ours).into_iter().filter_map(|run| value(run).zip(beside(run))).unzip()
}

/// The ratio of a figure that every run has; ours over theirs, each run by that of the same repeat.
///
/// # Errors
/// When the places have not the same number of runs, or a value is not above 0.
pub fn ratio<'a, R: Ran>(
    runs: &'a [R],
    ours: R::Place<'a>,
    theirs: R::Place<'a>,
    figure: impl Fn(&R) -> f64,
) -> Result<Ratio, BadPairs> {
    Ratio::of(&column(runs, ours, &figure), &column(runs, theirs, &figure))
}

/// Values of a figure in short; what is not finite is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// Their median.
    pub median: f64,
    /// Their 95th percentile.
    pub p95: Option<f64>,
    /// Low end of a 95 % interval.
    pub low: Option<f64>,
    /// High end.
    pub high: Option<f64>,
}

impl Spread {
    /// Of values, with the interval of their median; `None` without any, and where their median is infinite.
    pub fn of(values: &[f64]) -> Option<Spread> {
        Spread::with(values, median_interval(values))
    }

    /// Of values, with an interval that is known.
    pub fn with(values: &[f64], interval: Option<Interval>) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let finite = |value: &f64| value.is_finite();
        Some(Spread {
            count: values.len(),
            median: quantile(&sorted, 0.5).filter(finite)?,
            p95: quantile(&sorted, 0.95).filter(finite),
            low: interval.map(|i| i.low).filter(finite),
            high: interval.map(|i| i.high).filter(finite),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Run(&'static str, usize, f64);

    impl Ran for Run {
        type Place<'a> = &'a str;

        fn place(&self) -> &str {
            self.0
        }

        fn repeat(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn figures_are_by_repeat_in_whatever_order_the_runs_came() {
        let runs = [Run("b", 1, 40.0), Run("a", 1, 20.0), Run("a", 0, 10.0), Run("b", 0, 30.0)];
        assert_eq!(column(&runs, "a", |run| run.2), [10.0, 20.0]);
        assert_eq!((median(&runs, "a", |run| run.2), median(&runs, "c", |run| run.2)), (Some(15.0), None));
        assert_eq!(ratio(&runs, "b", "a", |run| run.2).unwrap().median, 2.5);
    }

    #[test]
    fn a_repeat_that_one_of_two_arms_lacks_makes_no_pair() {
        let runs = [Run("a", 0, 1.0), Run("b", 0, 2.0), Run("a", 1, 3.0), Run("a", 2, 5.0), Run("b", 2, 0.0)];
        assert_eq!(pairs(&runs, "a", "b", |run| Some(run.2)), (vec![1.0], vec![2.0]));
        assert!(ratio(&runs, "a", "b", |run| run.2).is_err());
    }

    #[test]
    fn a_spread_has_no_end_that_is_infinite_and_none_without_a_middle() {
        let spread = Spread::of(&[1.0, 2.0, f64::INFINITY]).unwrap();
        assert_eq!((spread.count, spread.median, spread.p95, spread.low), (3, 2.0, None, None));
        assert_eq!(Spread::of(&[1.0, f64::INFINITY, f64::INFINITY]), None);
        assert_eq!(Spread::of(&[]), None);
    }
}
