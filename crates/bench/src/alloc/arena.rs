//! The page arena off and on: throughput and minor faults of a fixed number of steps from a process's start.
//!
//! What it is not: a comparison with other allocators. Both arms are ours, in the same profile.

use super::arm::Arm;
use super::case::Case;
use super::plan::Plan;
use super::run::Length;
use super::summary::column;
use super::Run;
use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::worker::{Ask, Program};
use anyhow::{Context, Result};
use memfold_stats::Ratio;
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// What runs.
    pub cases: Vec<Case>,
    /// Steps of each thread; `None` for the case's own ([`steps`]).
    pub steps: Option<u64>,
    /// Runs of each arm on each case.
    pub rounds: usize,
    /// What sizes and slots are drawn from.
    pub seed: u64,
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

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaReport {
    /// Names this layout.
    pub schema: &'static str,
    /// Where it ran.
    pub manifest: Manifest,
    /// What was asked for.
    pub options: Options,
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

/// Runs the experiment.
///
/// # Errors
/// As [`super::run()`].
pub fn run(options: &Options, program: &Program, progress: Progress<'_>) -> Result<ArenaReport> {
    let manifest = Manifest::gather();
    let arms = [false, true].map(|on| Arm::with_arena(&program.library, on)).to_vec();
    let plan = Plan::new(options.cases.clone(), arms, program)?;
    let total = (plan.cases.len() * plan.arms.len() * options.rounds) as u64;
    let mut runs = Vec::new();
    for round in 0..options.rounds {
        for (case, arm) in plan.round(round) {
            let what = format!("{}, {}", case.name, arm.name);
            progress(Advance { done: runs.len() as u64, total, what: &what });
            let ask = Ask { steps: options.steps.unwrap_or(steps(case)), ..Ask::default() };
            let seed = options.seed.wrapping_add(round as u64);
            let found = plan.starter.run(case, arm, seed, Length { warm: None, ask });
            runs.push(Run::of(case, arm, round, found.with_context(|| format!("the run of {what} failed"))?));
        }
    }
    progress(Advance { done: total, total, what: "done" });
    let rows = plan.cases.iter().map(|case| row(case, &plan.arms, options, &runs)).collect::<Result<_>>()?;
    let schema = "memfold-bench-arena-1";
    Ok(ArenaReport { schema, manifest, options: options.clone(), rows, runs })
}

/// One of the figures of a run.
type Figure = fn(&Run) -> f64;

fn row(case: &Case, arms: &[Arm], options: &Options, runs: &[Run]) -> Result<ArenaRow> {
    let (off, on) = (arms[0].name.as_str(), arms[1].name.as_str());
    let of = |arm: &str, figure: fn(&Run) -> f64| column(runs, case.name, arm, figure);
    let calls: Figure = |run| run.calls_per_s;
    let faults: Figure = |run| run.minor_faults as f64;
    let rss: Figure = |run| run.rss_peak_bytes as f64;
    let arm = |arm: &str| -> Result<ArenaArm> {
        let median = |figure| memfold_stats::median(&of(arm, figure)).context("there are no runs");
        Ok(ArenaArm {
            calls_per_s: median(calls)?,
            minor_faults: median(faults)?,
            rss_peak_bytes: median(rss)?,
        })
    };
    let ratio = |figure| Ratio::of(&of(on, figure), &of(off, figure), options.seed);
    let (arm_off, arm_on) = (arm(off)?, arm(on)?);
    Ok(ArenaRow {
        case: case.name,
        steps: options.steps.unwrap_or(steps(case)),
        off: arm_off,
        on: arm_on,
        calls_on_over_off: ratio(calls)?,
        faults_saved: 1.0 - arm_on.minor_faults / arm_off.minor_faults,
        rss_on_over_off: ratio(rss)?,
    })
}
