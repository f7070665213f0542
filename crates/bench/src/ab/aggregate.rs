//! From runs to figures: what is saved, medians with intervals, ratios of pairs.

use super::single_run::Run;
use super::{Arm, Options};
use crate::workload::Kind;
use memfold_experiment::runs::{of as runs_of, pairs, Ran, Spread};
use memfold_stats::Ratio;
use serde::Serialize;
use std::collections::HashMap;

/// A row of `aggregate.csv`: a metric of an arm, or a ratio of an arm to the baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: Kind,
    /// The arm.
    pub arm: Arm,
    /// Name of the metric or ratio.
    pub metric: String,
    /// How many runs or pairs.
    pub count: usize,
    /// Their median.
    pub median: f64,
    /// Their 95th percentile; empty where it is a run in which what is timed never came.
    pub p95: Option<f64>,
    /// Low end of the median's 95 % interval; empty where there are too few runs.
    pub low: Option<f64>,
    /// High end.
    pub high: Option<f64>,
}

/// The ratio of an arm's throughput to the baseline's, by workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// The workload.
    pub workload: Kind,
    /// The arm.
    pub arm: Arm,
    /// Units a second, over the baseline's of the same repeat.
    pub ratio: Ratio,
}

/// Fills in what compares each run with the baseline's run of the same repeat.
pub(super) fn compare(runs: &mut [Run]) {
    let base = |run: &Run| Some(((run.workload, run.repeat), run.metrics.footprint_mean_bytes?));
    let bases: HashMap<(Kind, usize), f64> =
        runs.iter().filter(|run| run.arm == Arm::Baseline).filter_map(base).collect();
    for run in runs {
        let base = bases.get(&(run.workload, run.repeat)).copied();
        if let (Some(base), Some(own)) = (base, run.metrics.footprint_mean_bytes) {
            run.metrics.saved_bytes_mean = Some(base - own);
            run.metrics.saved_pct_of_resident = (base > 0.0).then(|| (base - own) * 100.0 / base);
        }
    }
}

/// The ratios of throughput: of every arm but the baseline, on every workload.
pub(super) fn throughputs(options: &Options, runs: &[Run]) -> Vec<Throughput> {
    let others = options.arms.iter().filter(|arm| **arm != Arm::Baseline);
    let places = others.flat_map(|&arm| options.workloads.iter().map(move |&workload| (workload, arm)));
    let ratio = |(workload, arm)| {
        let (ours, theirs) =
            pairs(runs, (workload, arm), (workload, Arm::Baseline), |run| run.metrics.units_per_s);
        let ratio = Ratio::of(&ours, &theirs).ok()?;
        Some(Throughput { workload, arm, ratio })
    };
    places.filter_map(ratio).collect()
}

/// All rows: each metric of each arm and workload, and the ratios.
pub(super) fn rows(options: &Options, runs: &[Run]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (workload, arm) in
        options.workloads.iter().flat_map(|&w| options.arms.iter().map(move |&arm| (w, arm)))
    {
        let own = runs_of(runs, (workload, arm));
        let Some(first) = own.first() else { continue };
        let mut add = |metric: String, spread: Option<Spread>| {
            rows.extend(spread.map(|Spread { count, median, p95, low, high }| Row {
                workload,
                arm,
                metric,
                count,
                median,
                p95,
                low,
                high,
            }));
        };
        for (place, (name, _)) in first.metrics.values().into_iter().enumerate() {
            let of = |run: &&Run| run.metrics.values()[place].1.or_else(|| never(run, name));
            let values: Vec<f64> = own.iter().filter_map(of).collect();
            add(name.to_owned(), Spread::of(&values));
        }
        for (name, of) in RATIOS.into_iter().filter(|_| arm != Arm::Baseline) {
            let (ours, theirs) = pairs(runs, (workload, arm), (workload, Arm::Baseline), of);
            let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
            add(format!("{name}_ratio_{}_vs_baseline", arm.name()), Spread::of(&ratios));
        }
    }
    rows
}

impl Ran for Run {
    type Place<'a> = (Kind, Arm);

    fn place(&self) -> (Kind, Arm) {
        (self.workload, self.arm)
    }

    fn repeat(&self) -> usize {
        self.repeat
    }
}

type Figure = fn(&Run) -> Option<f64>;

/// What ratios are formed of.
const RATIOS: [(&str, Figure); 5] = [
    ("units_per_sec", |run| run.metrics.units_per_s),
    ("elapsed_ms", |run| run.metrics.elapsed_ms),
    ("unit_p99_ns", |run| run.metrics.unit_p99_ns),
    ("footprint_mean_bytes", |run| run.metrics.footprint_mean_bytes),
    ("host_cpu_s", |run| Some(run.metrics.host_user_s? + run.metrics.host_system_s?)),
];

/// Infinity for a time that never came in a run in which it could have: were such runs left out, an arm that reaches its aim
/// in one run of six would be as fast as one that always does.
fn never(run: &Run, metric: &str) -> Option<f64> {
    let timed = metric == "half_of_cold_folded_s" && run.arm.folds();
    (timed && run.samples.iter().any(|sample| sample.cold_bytes > Some(0))).then_some(f64::INFINITY)
}
