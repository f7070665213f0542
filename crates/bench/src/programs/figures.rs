//! From runs to figures: the columns of `runs.csv`, medians with intervals, ratios of pairs.

use super::measured::{Moment, Run};
use super::{Arm, Kind, Options};
use memfold_experiment::runs::{of as runs_of, pairs, Ran, Spread};
use memfold_stats::Ratio;
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
    /// Low end of the median's 95 % interval; empty where there are too few runs.
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

/// A figure of a run; `None` in an arm that does not have it.
type Figure = Box<dyn Fn(&Run) -> Option<f64>>;

/// The columns of `runs.csv` behind program, repeat and arm.
pub(super) fn figures(options: &Options) -> Vec<(String, Figure)> {
    type Plain = fn(&Run) -> Option<f64>;
    type Bytes = fn(&Moment) -> Option<u64>;
    const FIRST: [(&str, Plain); 2] =
        [("items", |run| Some(run.items as f64)), ("load_s", |run| Some(run.load_s))];
    const MEMORY: [(&str, Bytes); 3] = [
        ("resident", |moment| Some(moment.resident_bytes)),
        ("anonymous", |moment| Some(moment.anonymous_bytes)),
        ("pss", |moment| moment.pss_bytes),
    ];
    const REST: [(&str, Plain); 15] = [
        ("hot_units_per_s_begin", |run| Some(run.hot_begin.units_per_s())),
        ("hot_p99_ns_begin", |run| Some(run.hot_begin.p99_ns as f64)),
        ("hot_units_per_s_end", |run| Some(run.hot_end.units_per_s())),
        ("hot_p99_ns_end", |run| Some(run.hot_end.p99_ns as f64)),
        ("collect_s", |run| run.collect_s),
        ("verify_s", |run| Some(run.verify_s)),
        ("exit_s", |run| Some(run.exit_s)),
        ("cpu_s", |run| Some(run.cpu_s)),
        ("pages_evicted", |run| Some(run.folded.as_ref()?.pages.evicted as f64)),
        ("pages_restored", |run| Some(run.folded.as_ref()?.pages.restored as f64)),
        ("pages_second_chance", |run| Some(run.folded.as_ref()?.pages.second_chance as f64)),
        ("stall_pct", |run| Some(run.folded.as_ref()?.stall_pct)),
        ("attached_processes", |run| Some(run.attached?.processes as f64)),
        ("attach_stopped_ns", |run| Some(run.attached?.stopped_ns_longest as f64)),
        ("saved_bytes_peak", |run| Some(run.folded.as_ref()?.saved_bytes_peak as f64)),
    ];
    let plain = |(name, figure): (&str, Plain)| (name.to_owned(), Box::new(figure) as Figure);
    let mut all: Vec<(String, Figure)> = FIRST.map(plain).into();
    for (kind, bytes) in MEMORY {
        let loaded = move |run: &Run| run.moments.first().and_then(bytes).map(|bytes| bytes as f64);
        all.push((format!("{kind}_bytes_loaded"), Box::new(loaded)));
        for moment in options.moments() {
            let then = move |run: &Run| run.at(moment).and_then(bytes).map(|bytes| bytes as f64);
            all.push((format!("{kind}_bytes_{}", label(moment)), Box::new(then)));
        }
    }
    all.extend(REST.map(plain));
    all
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
    ["resident_", "anonymous_", "pss_", "hot_", "collect_s", "verify_s", "exit_s", "cpu_s", "load_s"]
        .iter()
        .any(|begin| figure.starts_with(begin))
}

/// The ratios of every arm but the plain one.
pub(super) fn beside(options: &Options, runs: &[Run]) -> Vec<Beside> {
    let mut all = Vec::new();
    for (program, arm) in places(options).filter(|(_, arm)| *arm != Arm::Plain) {
        for (name, figure) in figures(options).into_iter().filter(|(name, _)| compared(name)) {
            let (ours, theirs) = pairs(runs, (program, arm), (program, Arm::Plain), figure);
            if let Ok(ratio) = Ratio::of(&ours, &theirs) {
                all.push(Beside { program, arm, figure: name, ratio });
            }
        }
    }
    all
}

/// All rows: each figure of each program and arm, and the ratios.
pub(super) fn rows(options: &Options, runs: &[Run]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (program, arm) in places(options) {
        let own = runs_of(runs, (program, arm));
        for (name, figure) in figures(options) {
            let values: Vec<f64> = own.iter().filter_map(|run| figure(run)).collect();
            let Some(Spread { count, median, low, high, .. }) = Spread::of(&values) else { continue };
            rows.push(Row { program, arm, figure: name, count, median, low, high });
        }
    }
    rows.extend(beside(options, runs).into_iter().map(|Beside { program, arm, figure, ratio }| {
        let (low, high) = ratio.interval.map(|i| (i.low, i.high)).unzip();
        let figure = format!("{figure}_ratio_{}_vs_plain", arm.name());
        Row { program, arm, figure, count: ratio.pairs, median: ratio.median, low, high }
    }));
    rows
}

impl Ran for Run {
    type Place<'a> = (Kind, Arm);

    fn place(&self) -> (Kind, Arm) {
        (self.program, self.arm)
    }

    fn repeat(&self) -> usize {
        self.repeat
    }
}

fn places(options: &Options) -> impl Iterator<Item = (Kind, Arm)> + '_ {
    options.programs.iter().flat_map(|&program| options.arms.iter().map(move |&arm| (program, arm)))
}

/// The head of `runs.csv`.
pub(super) fn head(options: &Options) -> Vec<String> {
    let own = ["program", "repeat", "arm"].map(str::to_owned).into_iter();
    own.chain(figures(options).into_iter().map(|(name, _)| name)).collect()
}

/// The line of `runs.csv`.
pub(super) fn line(run: &Run, options: &Options) -> Vec<String> {
    let own = [run.program.name().to_owned(), run.repeat.to_string(), run.arm.name().to_owned()];
    let cells =
        figures(options).into_iter().map(|(_, figure)| figure(run).map_or(String::new(), |v| v.to_string()));
    own.into_iter().chain(cells).collect()
}
