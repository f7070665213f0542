//! The page arena off and on: throughput and minor faults of a fixed number of steps from a process's start.
//!
//! What it is not: a comparison with other allocators. Both arms are ours, in the same profile.

use super::arm::Arm;
use super::case::{Case, Measures};
use super::plan::Plan;
use super::run::Length;
use super::Run;
use crate::arguments::{count, whole};
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::{Ask, Program, Written};
use anyhow::{Context, Result};
use memfold_experiment::runs::{median, ratio};
use memfold_stats::Ratio;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  memfold bench arena                                   mid_mt and vm_mixed
  memfold bench arena --pattern realloc,calloc --steps 500000
  memfold bench arena --rounds 10 --json --out runs/arena

Exit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here or too little memory.";

/// Count page faults and calls a second with the page arena off and on (MEMFOLD_ARENA).
///
/// Each run is a process in a clean environment that makes a fixed number of steps; faults are those from its start to its
/// last step.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// What all random choices are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub measures: Measures,
    /// Steps of each thread [default: 40000 in mid_mt, 200000 otherwise].
    #[arg(long, value_name = "N", value_parser = whole(1..=1 << 40))]
    pub steps: Option<u64>,
    /// Runs with the arena off, and as many with it on.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count(1_000))]
    pub rounds: usize,
}

/// One arm on one case: medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ArenaArm {
    /// Calls of the allocator a second.
    pub calls_per_s: f64,
    /// Minor faults of the process.
    pub minor_faults: f64,
    /// Most resident memory, bytes.
    pub rss_peak_bytes: f64,
}

/// Both arms on one case.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaRow {
    /// The case.
    pub case: &'static str,
    /// Steps of each thread.
    pub steps: u64,
    /// Arena off.
    pub off: ArenaArm,
    /// Arena on.
    pub on: ArenaArm,
    /// Calls a second, on over off.
    pub calls_on_over_off: Ratio,
    /// Share of the faults that the arena saves; negative where it causes more.
    pub faults_saved: f64,
    /// Most resident memory, on over off.
    pub rss_on_over_off: Ratio,
}

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Figures of each case.
    pub rows: Vec<ArenaRow>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Steps of each thread that a case runs for unless told otherwise: those of the page arena's own report where it has the
/// case (40 000 in each of four threads, and 200 000).
pub fn steps(case: &Case) -> u64 {
    match case.name {
        "mid_mt" => 40_000,
        _ if case.steps > 0 => case.steps,
        _ => 200_000,
    }
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-arena-1");

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        let usual: Vec<Case> = ["mid_mt", "vm_mixed"].iter().filter_map(|name| name.parse().ok()).collect();
        self.measures.prepare(&usual, Written::Pages)
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let arms = [false, true].map(|on| Arm::with_arena(&program.library, on)).to_vec();
        let plan = Plan::new(&self.measures.cases, arms, program)?;
        let mut course = Course::of(plan.cases.len() * plan.arms.len() * self.rounds, progress);
        let steps = |case: &Case| self.steps.unwrap_or(steps(case));
        let ask = |case: &Case| Ask { steps: steps(case), ..Ask::default() };
        let length = |case: &Case| Length { warm: None, ask: ask(case) };
        let runs = plan.runs(&mut course, self.rounds, self.seed, length)?;
        course.over("done");
        let row = |case: &Case| row(case.name, steps(case), &plan.arms, &runs);
        Ok(Found { rows: plan.cases.iter().map(row).collect::<Result<_>>()?, runs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", &report.found.runs)
    }
}

fn row(case: &'static str, steps: u64, arms: &[Arm], runs: &[Run]) -> Result<ArenaRow> {
    let (off, on) = ((case, arms[0].name.as_str()), (case, arms[1].name.as_str()));
    let (calls, rss) = (|run: &Run| run.calls_per_s, |run: &Run| run.rss_peak_bytes as f64);
    let arm = |place: (&'static str, &str)| -> Result<ArenaArm> {
        Ok(ArenaArm {
            calls_per_s: median(runs, place, calls).context("there are no runs")?,
            minor_faults: median(runs, place, |run| run.minor_faults as f64).context("there are no runs")?,
            rss_peak_bytes: median(runs, place, rss).context("there are no runs")?,
        })
    };
    let (arm_off, arm_on) = (arm(off)?, arm(on)?);
    Ok(ArenaRow {
        case,
        steps,
        off: arm_off,
        on: arm_on,
        calls_on_over_off: ratio(runs, on, off, calls)?,
        faults_saved: 1.0 - arm_on.minor_faults / arm_off.minor_faults,
        rss_on_over_off: ratio(runs, on, off, rss)?,
    })
}
