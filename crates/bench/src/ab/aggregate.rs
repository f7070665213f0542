//! From runs to figures: what is saved, medians with intervals, ratios of pairs.

use super::single_run::Run;
use super::{Arm, Options};
use crate::workload::Kind;
use memfold_stats::{median_interval, quantile, Interval, Ratio};
use serde::Serialize;

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
    /// Low end of the median's 95 % bootstrap interval; empty where there are too few runs.
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
    let bases: Vec<(Kind, usize, Option<f64>)> = runs
        .iter()
        .filter(|run| run.arm == Arm::Baseline)
        .map(|run| (run.workload, run.repeat, run.metrics.footprint_mean_bytes))
        .collect();
    for run in runs {
        let same = |(workload, repeat, _): &&(Kind, usize, Option<f64>)| {
            (*workload, *repeat) == (run.workload, run.repeat)
        };
        let base = bases.iter().find(same).and_then(|(_, _, bytes)| *bytes);
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
    places
        .filter_map(|(workload, arm)| {
            let ratio = ratio(options, runs, workload, arm, |run| run.metrics.units_per_s)?;
            Some(Throughput { workload, arm, ratio })
        })
        .collect()
}

/// All rows: each metric of each arm and workload, and the ratios.
pub(super) fn rows(options: &Options, runs: &[Run]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &workload in &options.workloads {
        for &arm in &options.arms {
            let own: Vec<_> = runs.iter().filter(|run| (run.workload, run.arm) == (workload, arm)).collect();
            let Some(first) = own.first() else { continue };
            for (place, (name, _)) in first.metrics.values().into_iter().enumerate() {
                let of = |run: &&Run| run.metrics.values()[place].1.or_else(|| never(run, name));
                let values: Vec<f64> = own.iter().filter_map(of).collect();
                let interval = median_interval(&values, options.measures.seed);
                rows.extend(row(workload, arm, name.to_owned(), &values, interval));
            }
            if arm == Arm::Baseline {
                continue;
            }
            for (name, of) in RATIOS {
                let (ours, theirs) = pairs(runs, workload, arm, of);
                let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
                let interval = Ratio::of(&ours, &theirs, options.measures.seed).ok().and_then(|r| r.interval);
                let name = format!("{name}_ratio_{}_vs_baseline", arm.name());
                rows.extend(row(workload, arm, name, &ratios, interval));
            }
        }
    }
    rows
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

/// `None` without values, and where the median is a time that never came.
fn row(workload: Kind, arm: Arm, metric: String, values: &[f64], interval: Option<Interval>) -> Option<Row> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Row {
        workload,
        arm,
        metric,
        count: values.len(),
        median: quantile(&sorted, 0.5).filter(|median| median.is_finite())?,
        p95: quantile(&sorted, 0.95).filter(|p95| p95.is_finite()),
        low: interval.map(|i| i.low).filter(|low| low.is_finite()),
        high: interval.map(|i| i.high).filter(|high| high.is_finite()),
    })
}

fn ratio(options: &Options, runs: &[Run], workload: Kind, arm: Arm, of: Figure) -> Option<Ratio> {
    let (ours, theirs) = pairs(runs, workload, arm, of);
    Ratio::of(&ours, &theirs, options.measures.seed).ok()
}

/// The values of the repeats that both the arm and the baseline have, in the same order.
fn pairs(runs: &[Run], workload: Kind, arm: Arm, of: Figure) -> (Vec<f64>, Vec<f64>) {
    let value = |repeat: usize, arm: Arm| {
        let wanted = |run: &&Run| (run.workload, run.repeat, run.arm) == (workload, repeat, arm);
        runs.iter().find(wanted).and_then(of).filter(|v| v.is_finite() && *v > 0.0)
    };
    let repeats = runs.iter().filter(|run| (run.workload, run.arm) == (workload, arm)).map(|run| run.repeat);
    repeats.filter_map(|repeat| value(repeat, arm).zip(value(repeat, Arm::Baseline))).unzip()
}
