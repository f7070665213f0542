//! Real programs, plain and folded by `memfold run` with its default options, in turns: `memfold bench programs`.
//!
//! What it is: the programs, each of which fills a heap, lies idle but for a small load of its own, reads everything back and
//! ends; what they take of the machine meanwhile; tables, plots and a page.
//!
//! What it is not: the workloads of [`crate::ab`], which are ours and know what is cold; nor a judge of the figures.
//!
//! Invariants: the arms of a repeat run one after the other, in an order that rotates from repeat to repeat; a program says by itself
//! whether its data are right, and a run in which a datum is wrong fails and yields no figures; a program that is not
//! installed is named with its package, and the others run.

mod capture;
mod charts;
mod chromium;
mod figures;
mod html;
mod install;
mod kind;
mod measured;
mod place;
mod postgres;
mod redis;
mod scripted;
mod single_run;
mod subject;
mod summary;

pub(crate) use capture::capture;
pub use figures::{Beside, Row};
pub use kind::Kind;
pub use measured::{Folded, Moment, Pages, Run};
pub use subject::Hot;

use crate::course::turns;
use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::output::Output;
use crate::worker::Program;
use crate::Unsupported;
use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

memfold_experiment::named! {
    /// One side of the experiment.
    pub enum Arm, "arm" {
        /// The program as it is.
        Plain = "plain",
        /// The program as it is, once more: what differs between the two is noise.
        Null = "null",
        /// Started by `memfold run` with its default options.
        Folded = "folded",
    }
}

/// An experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// The programs.
    pub programs: Vec<Kind>,
    /// The arms; plain among them.
    pub arms: Vec<Arm>,
    /// Runs of each arm.
    pub runs: usize,
    /// About how much heap each program builds, bytes.
    pub bytes: u64,
    /// How many records that were made one after another stay in use together, if any of them does.
    pub together: u64,
    /// How long it lies idle, ms.
    pub idle_millis: u64,
    /// Change one datum after the load, to see that this is found.
    pub spoil: bool,
}

/// A program that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Which.
    pub program: Kind,
    /// Why, and what to do about it.
    pub why: String,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
    /// What it ran on.
    pub manifest: Manifest,
    /// What each program says of its version.
    pub versions: BTreeMap<&'static str, String>,
    /// What did not run.
    pub skipped: Vec<Skipped>,
    /// Every run, in its order.
    pub runs: Vec<Run>,
    /// Each figure of each arm over its runs.
    pub figures: Vec<Row>,
    /// Each arm beside the plain one of the same repeat.
    pub beside: Vec<Beside>,
}

/// Seconds after the load at which memory is looked at closely.
const MOMENTS: [u64; 4] = [10, 30, 60, 120];

impl Options {
    /// Times after the load at which memory is looked at closely: those that fit in, or else the end of the idle phase.
    pub fn moments(&self) -> Vec<Duration> {
        let idle = Duration::from_millis(self.idle_millis);
        let fit: Vec<Duration> =
            MOMENTS.into_iter().map(Duration::from_secs).filter(|moment| *moment <= idle).collect();
        if fit.is_empty() {
            return vec![idle];
        }
        fit
    }

    /// The runs of these programs, in their order.
    fn plan(&self, programs: &[Kind]) -> Vec<(Kind, usize, Arm)> {
        let mut plan = Vec::new();
        for repeat in 0..self.runs {
            for &program in programs {
                plan.extend(turns(&self.arms, repeat).map(|arm| (program, repeat, arm)));
            }
        }
        plan
    }

    /// Whether the plan makes sense here, before anything is begun.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<()> {
        let different = |count: usize, what: &str, distinct: usize| {
            ensure!(count == distinct, "each {what} can be named once");
            Ok(())
        };
        let distinct = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.dedup();
            names.len()
        };
        ensure!(self.runs > 0 && !self.programs.is_empty(), "a run and a program are needed");
        ensure!(
            self.arms.contains(&Arm::Plain),
            "the arms must contain plain, which all others are compared with"
        );
        different(self.arms.len(), "arm", distinct(self.arms.iter().map(|arm| arm.name()).collect()))?;
        different(
            self.programs.len(),
            "program",
            distinct(self.programs.iter().map(|kind| kind.name()).collect()),
        )?;
        // Java keeps room to collect in, and a snapshot's child copies what changes.
        let (free, needed) = (crate::process::available_memory(), self.bytes * 5 / 2 + (512 << 20));
        ensure!(
            free >= needed,
            "too little memory: heaps of {} MiB need {} MiB, and {} MiB are available; choose a smaller --size",
            self.bytes >> 20,
            needed >> 20,
            free >> 20
        );
        Ok(())
    }
}

/// Carries out the plan and writes everything into `directory`, if there is one.
///
/// # Errors
/// When a program fails or holds a wrong datum, or a file cannot be written; [`Unsupported`] where no program is installed.
pub fn run(
    options: &Options,
    memfold: &Program,
    directory: Option<&Path>,
    progress: Progress<'_>,
) -> Result<Report> {
    let output = directory.map(Output::create).transpose()?;
    let (mut programs, mut skipped, mut versions) = (Vec::new(), Vec::new(), BTreeMap::new());
    for &program in &options.programs {
        match program.missing() {
            Some(why) => skipped.push(Skipped { program, why }),
            None => {
                versions.insert(program.name(), program.version());
                programs.push(program);
            }
        }
    }
    if programs.is_empty() {
        let why: Vec<String> =
            skipped.iter().map(|Skipped { program, why }| format!("{}: {why}", program.name())).collect();
        return Err(Unsupported(why.join("; ")).into());
    }
    let plan = options.plan(&programs);
    let (total, mut runs) = (plan.len() as u64, Vec::new());
    for (program, repeat, arm) in plan {
        let what = format!("{}, {}, run {} of {}", program.name(), arm.name(), repeat + 1, options.runs);
        progress(Advance { done: runs.len() as u64, total, what: &what });
        runs.push(
            single_run::run(memfold, options, program, arm, repeat)
                .with_context(|| format!("{what} failed"))?,
        );
    }
    progress(Advance { done: total, total, what: "plots" });
    let report = Report {
        figures: figures::rows(options, &runs),
        beside: figures::beside(options, &runs),
        options: options.clone(),
        manifest: Manifest::gather(),
        versions,
        skipped,
        runs,
    };
    if let (Some(output), Some(directory)) = (&output, directory) {
        report.write(output, directory)?;
    }
    Ok(report)
}

impl Report {
    /// The programs that ran.
    pub fn programs(&self) -> impl Iterator<Item = Kind> + '_ {
        let ran = |kind: &Kind| self.runs.iter().any(|run| run.program == *kind);
        self.options.programs.iter().copied().filter(ran)
    }

    /// The median of a figure of an arm; `None` where the program has no such figure.
    pub fn median(&self, program: Kind, arm: Arm, figure: &str) -> Option<f64> {
        let wanted = |row: &&Row| (row.program, row.arm, row.figure.as_str()) == (program, arm, figure);
        self.figures.iter().find(wanted).map(|row| row.median)
    }

    fn write(&self, output: &Output, directory: &Path) -> Result<()> {
        let head =
            ["program", "repeat", "arm"].map(str::to_owned).into_iter().chain(figures::names(&self.options));
        output.table(
            "runs.csv",
            &head.collect::<Vec<_>>(),
            self.runs.iter().map(|run| figures::line(run, &self.options)),
        )?;
        output.rows("memory.csv", self.runs.iter().flat_map(Run::flat_moments))?;
        output.rows("aggregate.csv", &self.figures)?;
        output.result(self, &self.manifest)?;
        let plots = output.below("plots")?;
        let drawn = charts::all(self);
        for chart in &drawn {
            memfold_plot::save(chart.chart.as_ref(), &plots, chart.name)?;
        }
        let text = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        text("summary.txt", self.to_string())?;
        text("report.html", html::of(self, &drawn)?.html())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        summary::write(self, f)
    }
}

#[cfg(test)]
mod tests;
