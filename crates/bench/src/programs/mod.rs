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

mod attached;
mod below;
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

use crate::arguments::{count, millis, region, tier, whole};
use crate::course::{plan, Course, Progress};
use crate::experiment::Experiment;
use crate::output::Output;
use crate::worker::Program;
use crate::Unsupported;
use anyhow::{ensure, Result};
use memfold_experiment::all_different;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What came of it.
pub type Report = crate::experiment::Report<Options>;

memfold_experiment::named! {
    /// One side of the experiment.
    pub enum Arm, "arm" {
        /// The program as it is.
        Plain = "plain",
        /// The program as it is, once more: what differs between the two is noise.
        Null = "null",
        /// Started by `memfold run` with its default options.
        Folded = "folded",
        /// Started plainly, and attached to by `memfold attach` with its default options, as whatever it starts.
        Attached = "attached",
    }
}

const EXAMPLES: &str = "\
Examples:
  memfold bench programs --only redis,python3 --runs 1   two programs, a table on the terminal
  memfold bench programs --size 1G --runs 6 --out runs/programs
                                                         every program that is installed: tables, plots, a page
  memfold bench programs --tier disk=/var/tmp,after=30s --idle 10m   what is cold lies on disk
  memfold bench programs --busy 4m --only redis          how soon what was in use all the time is folded
  memfold bench programs --together 1                    what is in use scattered over all pages
  memfold bench programs --arms plain,null --idle 30s    what two runs differ by anyway
  memfold bench programs --collect --only python3,java   how long a full collection takes of what is folded
  memfold bench programs --leave-folded --runs 1         how long the exit of a folded program takes
  sudo memfold bench programs --attach --only redis      plain, started by memfold run, and attached to
  memfold bench programs --json | jq .figures            for programs

Each program builds a heap of about --size, reads it for --busy, lies idle but for a small load of its own, reads all
its data back, says whether they are right, and ends (with --leave-folded it ends at once). Folded is `memfold run` with its default
options. A program that is not installed is left out with a line that names its package.

Exit codes: 0 done and every datum right, 1 failed, 2 bad usage, 3 none of the programs is installed.";

/// Run real programs plain and folded in turns: memory, throughput, CPU and the time of the exit.
///
/// Memory is that of all processes of a program, 10, 30, 40, 60, 120, 300 and 600 s after its heap was built. Ratios are medians over pairs
/// of runs, with a 95 % interval from six runs on.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The programs: python3, sqlite, redis, redis-save (with snapshots), node, java, go, postgres, chromium [default: all].
    #[arg(long = "only", value_name = "P,..", value_delimiter = ',')]
    pub programs: Vec<Kind>,
    /// What to compare: plain, null (plain once more, for the noise), folded, attached (started plainly and attached to, as root).
    #[arg(long, value_name = "ARM,..", value_delimiter = ',', default_value = "plain,folded")]
    pub arms: Vec<Arm>,
    /// Compare with programs that are attached to, too: the arm `attached` besides the others.
    #[arg(long)]
    #[serde(skip)]
    pub attach: bool,
    /// Runs of each arm of each program.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1_000))]
    pub runs: usize,
    /// About how much heap each program builds.
    #[arg(long = "size", value_name = "BYTES", default_value = "256M", value_parser = region)]
    pub bytes: usize,
    /// The records in use, one in 20, lie in runs of so many that were made one after another; 1 scatters them over the whole heap.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1..=1 << 20))]
    pub together: u64,
    /// Before it lies idle have each program read all its data again and again for so long: what was in use all the time is cold then.
    #[arg(long = "busy", value_name = "TIME", value_parser = millis)]
    pub busy_millis: Option<u64>,
    /// How long each lies idle; the columns are those moments that fit in.
    #[arg(long = "idle", value_name = "TIME", default_value = "120s", value_parser = millis)]
    pub idle_millis: u64,
    /// Have what is folded lie below memory, as `memfold run --tier` does.
    #[arg(long, value_name = "disk=DIR[,after=30s]", value_parser = tier)]
    pub tier: Option<String>,
    /// At the end of its idle phase have each program go through its whole heap by itself, for the time of that: a full collection of python3, node, java
    /// and go, a snapshot of redis.
    #[arg(long)]
    pub collect: bool,
    /// Have each program end as it is at the end of its idle phase, folded where it is, for the time of that exit: nothing is read back before it, and
    /// no datum checked.
    #[arg(long, conflicts_with = "spoil")]
    pub leave_folded: bool,
    /// Also write raw runs, tables, plots and a page into this directory.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// Change one datum of each program after the load: the first run must fail, or its verification finds nothing.
    #[arg(long, hide = true)]
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

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
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

/// Seconds after the load at which memory is looked at closely. At 40 what is cold has been so for 30 beyond the usual cold age.
const MOMENTS: [u64; 7] = [10, 30, 40, 60, 120, 300, 600];

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

    /// Whether the plan makes sense here, before anything is begun.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<()> {
        ensure!(self.runs > 0 && !self.programs.is_empty(), "a run and a program are needed");
        ensure!(
            self.arms.contains(&Arm::Plain),
            "the arms must contain plain, which all others are compared with"
        );
        ensure!(all_different(&self.arms), "each arm can be named once");
        ensure!(all_different(&self.programs), "each program can be named once");
        // Java keeps room to collect in, and a snapshot's child copies what changes.
        let (free, needed) = (crate::process::available_memory(), self.bytes as u64 * 5 / 2 + (512 << 20));
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

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = None;

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        if self.programs.is_empty() {
            self.programs = Kind::ALL.to_vec();
        }
        if self.attach && !self.arms.contains(&Arm::Attached) {
            self.arms.push(Arm::Attached);
        }
        self.check()
    }

    fn run(&self, memfold: &Program, progress: Progress<'_>) -> Result<Found> {
        if self.arms.contains(&Arm::Attached) && !place::is_root() {
            return Err(Unsupported("only root can attach, which the arm `attached` does".into()).into());
        }
        let (mut programs, mut skipped, mut versions) = (Vec::new(), Vec::new(), BTreeMap::new());
        for &program in &self.programs {
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
        let plan = plan(&programs, &self.arms, self.runs);
        let (mut course, mut runs) = (Course::of(plan.len(), progress), Vec::new());
        for (program, repeat, arm) in plan {
            let what = format!("{}, {}, run {} of {}", program.name(), arm.name(), repeat + 1, self.runs);
            runs.push(course.run(&what, || single_run::run(memfold, self, program, arm, repeat))?);
        }
        course.over("plots");
        Ok(Found::of(self, versions, skipped, runs))
    }

    fn keep(report: &Report, output: &Output) -> Result<()> {
        let Report { options, found, .. } = report;
        output.table(
            "runs.csv",
            &figures::head(options),
            found.runs.iter().map(|run| figures::line(run, options)),
        )?;
        output.rows("memory.csv", found.runs.iter().flat_map(Run::flat_moments))?;
        output.rows("aggregate.csv", &found.figures)?;
        output.text("summary.txt", &report.to_string())?;
        let plots = charts::all(report);
        output.page(&html::of(report, &plots)?, &plots)
    }
}

impl Found {
    fn of(
        options: &Options,
        versions: BTreeMap<&'static str, String>,
        skipped: Vec<Skipped>,
        runs: Vec<Run>,
    ) -> Found {
        let (figures, beside) = (figures::rows(options, &runs), figures::beside(options, &runs));
        Found { versions, skipped, runs, figures, beside }
    }
}

impl Report {
    /// The programs that ran.
    pub fn programs(&self) -> impl Iterator<Item = Kind> + '_ {
        let ran = |kind: &Kind| self.found.runs.iter().any(|run| run.program == *kind);
        self.options.programs.iter().copied().filter(ran)
    }

    /// The median of a figure of an arm; `None` where the program has no such figure.
    pub fn median(&self, program: Kind, arm: Arm, figure: &str) -> Option<f64> {
        let wanted = |row: &&Row| (row.program, row.arm, row.figure.as_str()) == (program, arm, figure);
        self.found.figures.iter().find(wanted).map(|row| row.median)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        summary::write(self, f)
    }
}

#[cfg(test)]
mod tests;
