//! The figures that are made of the raw runs.

use super::aggregate::{compare, rows, throughputs, Row, Throughput};
use super::folder::{Folder, Record};
use super::single_run::Run;
use anyhow::{ensure, Result};
use serde::Serialize;

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
