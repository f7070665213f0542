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

use crate::arguments::{count, setting};
use crate::course::{plan, Course, Progress};
use crate::manifest::Manifest;
use crate::worker::Program;
use crate::workload::{Kind, Measures};
use crate::zram::Zram;
use anyhow::{ensure, Context, Result};
use memfold_experiment::all_different;
use memfold_pager::config::Setting;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

memfold_experiment::named! {
    /// One side of the experiment.
    pub enum Arm, "arm" {
        /// The program as it is.
        Baseline = "baseline",
        /// The program as it is, once more: what differs between the two is noise.
        Null = "null",
        /// With the pager.
        Pager = "pager",
        /// With the pager, which brings nothing only because it came back with others before.
        NoForesight = "no-foresight",
        /// Under the budget of a daemon: the workload registers its memory, and no allocator is replaced.
        Daemon = "daemon",
        /// As it is, and the kernel swaps to zram what the workload says is cold.
        Zram = "zram",
    }
}

impl Arm {
    /// Whether memfold folds in it.
    pub fn folds(self) -> bool {
        matches!(self, Arm::Pager | Arm::NoForesight | Arm::Daemon)
    }
}

impl Measures {
    /// What whoever folds a workload is told, each as its environment variable takes it.
    fn settings(&self) -> Vec<(Setting, String)> {
        let cold_age = (Setting::ColdAge, format!("{}ms", self.cold_millis));
        let max_cpu = self.max_cpu_percent.map(|percent| (Setting::MaxCpu, percent.to_string()));
        std::iter::once(cold_age).chain(max_cpu).collect()
    }
}

/// Run workloads with and without the pager in turns; write tables, plots and a page.
///
/// A directory that holds unfinished results of the same command is continued: finished runs are kept. Ratios are medians
/// over pairs of runs, with a 95 % interval from six runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench pager --runs 6 --out runs/p  workloads with and without the pager: tables, plots, a page",
])]
pub struct Options {
    /// Runs of each arm on each workload.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = count(1_000))]
    pub runs: usize,
    /// The workloads, see `memfold bench workload --help` [default: all but verify].
    #[arg(long = "only", value_name = "W,..", value_delimiter = ',')]
    pub workloads: Vec<Kind>,
    /// What to compare: baseline, null (a second baseline, for the noise), pager, no-foresight (the pager, which brings nothing only
    /// because it came back with others before), daemon (the workload registers its memory by the
    /// library, under a daemon of its own), zram (swap to a device of our own, root).
    #[arg(long, value_name = "ARM,..", value_delimiter = ',', default_value = "baseline,pager")]
    pub arms: Vec<Arm>,
    /// The directory of the results.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub out: PathBuf,
    /// Measures of the workloads.
    #[command(flatten)]
    pub measures: Measures,
    /// The highest share of one CPU, in per cent, that folding may take in the arms that fold [default: 25, as run does].
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = max_cpu)]
    #[serde(skip)]
    pub max_cpu: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
}

/// The same values as in `memfold run`, in per cent.
fn max_cpu(text: &str) -> Result<f64, String> {
    setting(Setting::MaxCpu, text).map(|millionths| millionths as f64 / 1e4)
}

impl Options {
    /// The runs, in their order.
    pub fn plan(&self) -> Vec<(Kind, usize, Arm)> {
        plan(&self.workloads, &self.arms, self.runs)
    }

    /// Completes the options, and looks whether they make sense here, before anything is begun.
    ///
    /// # Errors
    /// As [`Options::check`].
    pub fn prepare(&mut self) -> Result<()> {
        if self.workloads.is_empty() {
            self.workloads = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Verify).collect();
        }
        self.measures.max_cpu_percent = self.max_cpu;
        self.check()
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
        }
        if self.arms.contains(&Arm::Zram) {
            drop(Zram::start(16 << 20, "lz4")?);
        }
        Ok(())
    }
}

/// Carries out what is left of the plan, and writes everything that the directory is to hold.
///
/// # Errors
/// When a run fails. Finished runs are kept, and the same call goes on from there.
pub fn run(folder: &Folder, program: &Program, progress: Progress<'_>) -> Result<Results> {
    let options = &folder.record.options;
    let plan = options.plan();
    let mut course = Course::of(plan.len(), progress);
    for (workload, repeat, arm) in plan {
        let what = format!("{}, {}, run {} of {}", workload.name(), arm.name(), repeat + 1, options.runs);
        let done = course.run(&what, || match folder.has(workload, repeat, arm) {
            true => Ok(()),
            false => folder.keep(&single_run::run(program, options, workload, arm, repeat)?),
        });
        done.with_context(|| format!("what was finished is kept in {}", folder.path().display()))?;
    }
    course.over("plots");
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
