//! Everything that is made of the raw runs: tables, plots, summary and page.

use super::aggregate::{compare, rows, throughputs, Row, Throughput};
use super::folder::{Folder, Record};
use super::metrics::Metrics;
use super::once::Run;
use super::{charts, page, summary};
use crate::output::Output;
use anyhow::{ensure, Context, Result};
use serde::Serialize;
use std::fs;

/// The figures of an experiment.
#[derive(Debug, Serialize)]
pub struct Results {
    /// What was asked for, and where it ran.
    #[serde(flatten)]
    pub record: Record,
    /// How many runs of the plan are finished.
    pub finished: usize,
    /// Throughput of each arm beside the baseline's.
    pub throughput: Vec<Throughput>,
    /// Every metric and ratio.
    pub aggregate: Vec<Row>,
    #[serde(skip)]
    pub(super) runs: Vec<Run>,
}

impl Results {
    /// Of the runs in a directory.
    ///
    /// # Errors
    /// When there are none, or one cannot be read.
    pub fn of(folder: &Folder) -> Result<Results> {
        let mut runs = folder.runs()?;
        ensure!(!runs.is_empty(), "{} holds no finished run yet", folder.path().display());
        compare(&mut runs);
        let record = folder.record.clone();
        Ok(Results {
            throughput: throughputs(&record.options, &runs),
            aggregate: rows(&record.options, &runs),
            finished: runs.len(),
            record,
            runs,
        })
    }

    /// The arms in which memfold folds.
    pub(super) fn folding(&self) -> Vec<super::Arm> {
        self.record.options.arms.iter().copied().filter(|arm| arm.folds()).collect()
    }

    /// The median of a metric, if the arm has it on that workload.
    pub fn median(&self, workload: crate::workload::Kind, arm: super::Arm, metric: &str) -> Option<f64> {
        let wanted = |row: &&Row| (row.workload, row.arm, row.metric.as_str()) == (workload, arm, metric);
        self.aggregate.iter().find(wanted).map(|row| row.median)
    }
}

/// Writes tables, plots, summary and page of the runs in a directory, over those that are there.
///
/// # Errors
/// When there are no runs, or a file cannot be written.
pub fn write(folder: &Folder) -> Result<Results> {
    let results = Results::of(folder)?;
    let output = Output::create(folder.path())?;
    output.table("all_runs_long.csv", &header(), results.runs.iter().map(line))?;
    output.rows("aggregate.csv", &results.aggregate)?;
    let plots = folder.path().join("plots");
    fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
    let drawn = charts::all(&results);
    for chart in &drawn {
        plot::save(chart.chart.as_ref(), &plots, chart.name)?;
    }
    let text = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    text("aggregate_summary.txt", results.to_string())?;
    text("report.html", page::of(&results, &drawn).html())?;
    Ok(results)
}

fn header() -> Vec<String> {
    let fixed = ["workload", "repeat", "arm"].into_iter();
    fixed.chain(Metrics::MEANINGS.iter().map(|(name, _)| *name)).map(str::to_owned).collect()
}

fn line(run: &Run) -> Vec<String> {
    let fixed = [run.workload.name().to_owned(), run.repeat.to_string(), run.arm.name().to_owned()];
    let figures =
        run.metrics.values().into_iter().map(|(_, value)| value.map_or(String::new(), |v| v.to_string()));
    fixed.into_iter().chain(figures).collect()
}

impl std::fmt::Display for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        summary::write(self, f)
    }
}
