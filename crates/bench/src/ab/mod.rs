//! Workloads with and without the pager, in turns: `memfold bench pager`.
//!
//! What it is: a plan of runs (workloads, repeats, arms), each run a process of its own; the raw runs, tables, plots and
//! page that come of them; and going on with a plan that was interrupted.
//!
//! What it is not: the workloads, which are in [`crate::workload`], nor a judge of the figures.
//!
//! Invariants: the arms of a repeat run one after the other, in an order that rotates from repeat to repeat; a ratio is
//! formed of runs of the same repeat; tables, plots and page are made from the raw files alone.

mod aggregate;
mod charts;
mod daemon;
mod files;
mod folder;
mod html;
mod metrics;
mod results;
mod single_run;
mod summary;

pub use files::write;
pub use folder::{Folder, Record};
pub use metrics::Metrics;
pub use results::Results;
pub use single_run::{Run, Sample};

use crate::course::turns;
use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::worker::Program;
use crate::workload::{Data, Kind, Workload};
use crate::zram::Zram;
use anyhow::{ensure, Context, Result};
use memfold_pager::config::Setting;
use serde::{Deserialize, Serialize};

memfold_experiment::named! {
    /// One side of the experiment.
    pub enum Arm, "arm" {
        /// The program as it is.
        Baseline = "baseline",
        /// The program as it is, once more: what differs between the two is noise.
        Null = "null",
        /// With the pager.
        Pager = "pager",
        /// Served by the daemon: the workload registers its memory, and no allocator is replaced.
        Daemon = "daemon",
        /// As it is, and the kernel swaps to zram what the workload says is cold.
        Zram = "zram",
    }
}

impl Arm {
    /// Whether memfold folds in it.
    pub fn folds(self) -> bool {
        matches!(self, Arm::Pager | Arm::Daemon)
    }
}

/// What all workloads of an experiment have in common; `None` leaves a measure to the workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Length of a run, milliseconds.
    pub millis: u64,
    /// Memory of a workload, bytes.
    pub bytes: usize,
    /// Threads of a workload.
    pub workers: usize,
    /// What contents and orders are made from; each repeat takes the next number.
    pub seed: u64,
    /// What memory is filled with.
    pub data: Data,
    /// Units a second and worker; 0 for as many as it can.
    pub rate: f64,
    /// How long memory must be untouched to be cold, for the pager as for zram, milliseconds.
    pub cold_millis: u64,
    /// Share of the memory that is in use at a time, per cent.
    pub hot_percent: Option<f64>,
    /// Touches of memory anywhere, a second and worker.
    pub cold_rate: Option<f64>,
    /// Share of one CPU that folding may take where memfold folds, per cent; `None` for its default.
    #[serde(default)]
    pub max_cpu_percent: Option<f64>,
}

impl Measures {
    /// The measures of one workload.
    pub fn of(&self, kind: Kind) -> Workload {
        let Measures {
            millis, bytes, workers, seed, data, rate, cold_millis, hot_percent, cold_rate, ..
        } = *self;
        let usual = Workload::new(kind);
        Workload {
            millis,
            bytes,
            workers,
            seed,
            data,
            rate,
            cold_millis,
            hot_percent: hot_percent.unwrap_or(usual.hot_percent),
            cold_rate: cold_rate.unwrap_or(usual.cold_rate),
            ..usual
        }
    }

    /// What whoever folds a workload is told, each as its environment variable takes it.
    fn settings(&self) -> Vec<(Setting, String)> {
        let cold_age = (Setting::ColdAge, format!("{}ms", self.cold_millis));
        let max_cpu = self.max_cpu_percent.map(|percent| (Setting::MaxCpu, percent.to_string()));
        std::iter::once(cold_age).chain(max_cpu).collect()
    }
}

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The workloads.
    pub workloads: Vec<Kind>,
    /// The arms; the baseline among them.
    pub arms: Vec<Arm>,
    /// Runs of each arm.
    pub runs: usize,
    /// Measures of the workloads.
    pub measures: Measures,
}

impl Options {
    /// The runs, in their order.
    pub fn plan(&self) -> Vec<(Kind, usize, Arm)> {
        let mut plan = Vec::new();
        for repeat in 0..self.runs {
            for &workload in &self.workloads {
                plan.extend(turns(&self.arms, repeat).map(|arm| (workload, repeat, arm)));
            }
        }
        plan
    }

    /// Whether the plan can be carried out here, before anything is begun.
    ///
    /// # Errors
    /// What is wrong with it, or missing; [`crate::Unsupported`] where zram is wanted and not to be had.
    pub fn check(&self) -> Result<()> {
        ensure!(self.runs > 0, "at least one run is needed");
        ensure!(!self.workloads.is_empty() && !self.arms.is_empty(), "a workload and an arm are needed");
        ensure!(
            self.arms.contains(&Arm::Baseline),
            "the arms must contain baseline, which all others are compared with"
        );
        ensure!(all_different(&self.arms), "each arm can be named once; for a second baseline there is null");
        ensure!(all_different(&self.workloads), "each workload can be named once");
        let free = crate::process::available_memory();
        let needed = self.measures.bytes as u64 * 3 / 2 + (64 << 20);
        ensure!(
            free >= needed,
            "too little memory: a region of {} MiB needs {} MiB with what folding takes, and {} MiB are available; \
             choose a smaller --region",
            self.measures.bytes >> 20,
            needed >> 20,
            free >> 20
        );
        if self.arms.contains(&Arm::Daemon) {
            // The verifier brings memory of its own, which it does not register.
            ensure!(!self.workloads.contains(&Kind::Verify), "the daemon arm has no workload verify");
            // One range for all, and one for each worker's mapping.
            let workers = ::memfold_daemon::channel::REGIONS - 1;
            ensure!(
                !self.workloads.contains(&Kind::MmapChurn) || self.measures.workers <= workers,
                "a daemon takes {} ranges of a process: mmap_churn in the daemon arm can have {workers} workers, not {}",
                ::memfold_daemon::channel::REGIONS,
                self.measures.workers
            );
        }
        if self.arms.contains(&Arm::Zram) {
            drop(Zram::start(16 << 20, "lz4")?);
        }
        Ok(())
    }
}

fn all_different<T: PartialEq>(items: &[T]) -> bool {
    items.iter().enumerate().all(|(place, item)| !items[..place].contains(item))
}

/// Carries out what is left of the plan, and writes everything that the directory is to hold.
///
/// # Errors
/// When a run fails. Finished runs are kept, and the same call goes on from there.
pub fn run(folder: &Folder, program: &Program, progress: Progress<'_>) -> Result<Results> {
    let options = &folder.record.options;
    let plan = options.plan();
    let total = plan.len() as u64;
    for (done, (workload, repeat, arm)) in plan.into_iter().enumerate() {
        let what = format!("{}, {}, run {} of {}", workload.name(), arm.name(), repeat + 1, options.runs);
        progress(Advance { done: done as u64, total, what: &what });
        if folder.has(workload, repeat, arm) {
            continue;
        }
        let run = single_run::run(program, options, workload, arm, repeat).with_context(|| {
            format!("{what} failed; what was finished is kept in {}", folder.path().display())
        })?;
        folder.keep(&run)?;
    }
    progress(Advance { done: total, total, what: "plots" });
    write(folder)
}

/// Begins or continues an experiment in `directory`.
///
/// # Errors
/// As [`Folder::begin`].
pub fn begin(directory: &std::path::Path, options: &Options) -> Result<Folder> {
    Folder::begin(directory, options, Manifest::gather())
}

#[cfg(test)]
mod tests;
