//! From runs to figures: the columns of `runs.csv`, medians with intervals, ratios of pairs.

use super::measured::{Moment, Run};
use super::{Arm, Kind, Options};
use memfold_stats::{median_interval, Ratio};
use serde::Serialize;
use std::time::Duration;

/// A figure of an arm over its runs, or a ratio of an arm to the plain one: a row of `aggregate.csv`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The program.
    pub program: Kind,
    /// The arm.
    pub arm: Arm,
    /// The figure: a column of `runs.csv`, or `FIGURE_ratio_ARM_vs_plain`.
    pub figure: String,
    /// How many runs or pairs.
    pub count: usize,
    /// Their median.
    pub median: f64,
    /// Low end of the median's 95 % bootstrap interval; empty where there are too few runs.
    pub low: Option<f64>,
    /// High end.
    pub high: Option<f64>,
}

/// An arm beside the plain one of the same repeat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The program.
    pub program: Kind,
    /// The arm.
    pub arm: Arm,
    /// The figure.
    pub figure: String,
    /// Its ratio.
    pub ratio: Ratio,
}

/// What a moment is called in a column's name.
pub(super) fn label(moment: Duration) -> String {
    format!("{}s", moment.as_secs_f64())
}

/// The columns of `runs.csv` behind program, repeat and arm.
pub(super) fn names(options: &Options) -> Vec<String> {
    let moments = || std::iter::once("loaded".to_owned()).chain(options.moments().into_iter().map(label));
    let memory = ["resident", "anonymous", "pss"]
        .into_iter()
        .flat_map(|kind| moments().map(move |moment| format!("{kind}_bytes_{moment}")));
    let rest = [
        "hot_units_per_s_begin",
        "hot_p99_ns_begin",
        "hot_units_per_s_end",
        "hot_p99_ns_end",
        "verify_s",
        "exit_s",
        "cpu_s",
        "pages_evicted",
        "pages_restored",
        "pages_second_chance",
        "stall_pct",
        "saved_bytes_peak",
    ];
    let first = ["items", "load_s"].map(str::to_owned).into_iter();
    first.chain(memory).chain(rest.map(str::to_owned)).collect()
}

/// Their values; those that an arm does not have are `None`.
pub(super) fn of(run: &Run, options: &Options) -> Vec<Option<f64>> {
    let at: Vec<Option<&Moment>> = std::iter::once(run.moments.first())
        .chain(options.moments().into_iter().map(|m| run.at(m)))
        .collect();
    let memory =
        [|m: &Moment| Some(m.resident_bytes), |m: &Moment| Some(m.anonymous_bytes), |m: &Moment| m.pss_bytes]
            .into_iter()
            .flat_map(|kind| at.iter().map(move |moment| moment.and_then(kind).map(|bytes| bytes as f64)));
    let folded = run.folded.as_ref();
    let rest = [
        Some(run.hot_begin.units_per_s()),
        Some(run.hot_begin.p99_ns as f64),
        Some(run.hot_end.units_per_s()),
        Some(run.hot_end.p99_ns as f64),
        Some(run.verify_s),
        Some(run.exit_s),
        Some(run.cpu_s),
        folded.map(|folded| folded.pages.evicted as f64),
        folded.map(|folded| folded.pages.restored as f64),
        folded.map(|folded| folded.pages.second_chance as f64),
        folded.map(|folded| folded.stall_pct),
        folded.map(|folded| folded.saved_bytes_peak as f64),
    ];
    [Some(run.items as f64), Some(run.load_s)].into_iter().chain(memory).chain(rest).collect()
}

impl Run {
    /// The close look at this moment.
    fn at(&self, moment: Duration) -> Option<&Moment> {
        let close = self.moments[1..].iter().filter(|seen| seen.pss_bytes.is_some());
        close.into_iter().find(|seen| seen.at_s >= moment.as_secs_f64())
    }
}

/// Whether a figure is compared with the plain arm's.
fn compared(figure: &str) -> bool {
    ["resident_", "anonymous_", "pss_", "hot_", "verify_s", "exit_s", "cpu_s", "load_s"]
        .iter()
        .any(|begin| figure.starts_with(begin))
}

const SEED: u64 = 1;

/// The ratios of every arm but the plain one.
pub(super) fn beside(options: &Options, runs: &[Run]) -> Vec<Beside> {
    let mut all = Vec::new();
    for (program, arm) in places(options).filter(|(_, arm)| *arm != Arm::Plain) {
        for (column, figure) in names(options).into_iter().enumerate().filter(|(_, figure)| compared(figure))
        {
            let value = |repeat: usize, arm: Arm| {
                let wanted = |run: &&Run| (run.program, run.repeat, run.arm) == (program, repeat, arm);
                let value = runs.iter().find(wanted).and_then(|run| of(run, options)[column]);
                value.filter(|value| value.is_finite() && *value > 0.0)
            };
            let pairs = (0..options.runs).filter_map(|n| value(n, arm).zip(value(n, Arm::Plain)));
            let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
            if let Ok(ratio) = Ratio::of(&ours, &theirs, SEED) {
                all.push(Beside { program, arm, figure, ratio });
            }
        }
    }
    all
}

/// All rows: each figure of each program and arm, and the ratios.
pub(super) fn rows(options: &Options, runs: &[Run]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (program, arm) in places(options) {
        let own: Vec<Vec<Option<f64>>> = runs
            .iter()
            .filter(|run| (run.program, run.arm) == (program, arm))
            .map(|run| of(run, options))
            .collect();
        for (column, figure) in names(options).into_iter().enumerate() {
            let values: Vec<f64> = own.iter().filter_map(|run| run[column]).collect();
            let Some(median) = memfold_stats::median(&values) else { continue };
            let (low, high) = median_interval(&values, SEED).map(|i| (i.low, i.high)).unzip();
            rows.push(Row { program, arm, figure, count: values.len(), median, low, high });
        }
    }
    rows.extend(beside(options, runs).into_iter().map(|Beside { program, arm, figure, ratio }| {
        let (low, high) = ratio.interval.map(|i| (i.low, i.high)).unzip();
        let figure = format!("{figure}_ratio_{}_vs_plain", arm.name());
        Row { program, arm, figure, count: ratio.pairs, median: ratio.median, low, high }
    }));
    rows
}

fn places(options: &Options) -> impl Iterator<Item = (Kind, Arm)> + '_ {
    options.programs.iter().flat_map(|&program| options.arms.iter().map(move |&arm| (program, arm)))
}

/// The line of `runs.csv`.
pub(super) fn line(run: &Run, options: &Options) -> Vec<String> {
    let fixed = [run.program.name().to_owned(), run.repeat.to_string(), run.arm.name().to_owned()];
    let cells = of(run, options).into_iter().map(|value| value.map_or(String::new(), |v| v.to_string()));
    fixed.into_iter().chain(cells).collect()
}
