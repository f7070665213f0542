//! The allocator alone, beside glibc's and every other that is installed: a suite of patterns, without a pager.
//!
//! Each run is a process of its own, started in a clean environment; in a round every allocator runs every case once, one
//! allocator after the other, and another begins in the next round. Throughput is reported with the memory that it took,
//! because either is easy to have at the other's cost.
//!
//! What it is not: a set of real programs.
//!
//! Invariants: every raw run is kept; kernel calls are counted in one more run of each arm and case, from which no other figure
//! is taken, because counting slows it.

pub mod arena;
mod arm;
mod case;
mod charts;
mod count;
mod cpp;
mod plan;
mod run;
pub mod scorecard;
mod show;
pub mod soak;
mod standing;
mod summary;

pub use arm::{Arm, NotLoaded, Peer, Profile, BASE, OURS};
pub use case::{Case, SUITE};
pub use charts::draw;
pub use count::KernelCalls;
pub use standing::Standing;
pub use summary::{Cell, Latency};

use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::worker::Program;
use anyhow::{Context, Result};
use memfold_stats::Histogram;
use plan::Plan;
use run::{Found, Length};
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// What runs.
    pub cases: Vec<Case>,
    /// Our own arms.
    pub profiles: Vec<Profile>,
    /// Other allocators.
    pub peers: Vec<Peer>,
    /// Length of a run's measured phase, milliseconds, where no number of operations is asked for.
    pub millis: u64,
    /// Calls of the allocator that each run makes from its start, the same under every allocator; `None` to run for a time.
    pub operations: Option<u64>,
    /// Runs of each allocator on each case.
    pub rounds: usize,
    /// What sizes and slots are drawn from.
    pub seed: u64,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The case.
    pub case: &'static str,
    /// The allocator.
    pub arm: String,
    /// Number of the round, from 0.
    pub round: usize,
    /// Calls of the allocator in the measured phase.
    pub operations: u64,
    /// Time of the phase, ns.
    pub elapsed_ns: u64,
    /// The same for each of the calls.
    pub ns_per_call: f64,
    /// Calls a second: the sum of the threads' own rates.
    pub calls_per_s: f64,
    /// Most memory that was resident, bytes.
    pub rss_peak_bytes: u64,
    /// Resident memory at the end of the phase, bytes.
    pub rss_bytes: u64,
    /// Resident anonymous memory at the end of the phase, bytes.
    pub anonymous_bytes: u64,
    /// Minor faults from the program's start to the end of the phase.
    pub minor_faults: u64,
    /// Of these, in the phase.
    pub phase_faults: u64,
    /// The same for each of the calls.
    pub faults_per_call: f64,
    /// Time of sampled steps.
    #[serde(skip)]
    pub step_ns: Histogram,
}

/// The run that counted kernel calls.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// The case.
    pub case: &'static str,
    /// The allocator.
    pub arm: String,
    /// Calls of the allocator in the measured phase.
    pub operations: u64,
    /// Kernel calls in the measured phase.
    #[serde(flatten)]
    pub calls: KernelCalls,
}

/// The result of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct AllocReport {
    /// Names this layout.
    pub schema: &'static str,
    /// Where it ran.
    pub manifest: Manifest,
    /// What was asked for.
    pub options: Options,
    /// The allocators, glibc first.
    pub arms: Vec<Arm>,
    /// Why kernel calls were not counted, if they were not.
    pub uncounted: Option<String>,
    /// Figures of each allocator on each case.
    pub cells: Vec<Cell>,
    /// Our arms beside the others, over the whole suite.
    pub standings: Vec<Standing>,
    /// Runs in which kernel calls were counted.
    pub counted: Vec<Counted>,
    /// Every other run.
    pub runs: Vec<Run>,
}

impl Options {
    /// How long a run is, in words.
    pub(crate) fn length(&self) -> String {
        match self.operations {
            Some(operations) => format!("{operations} operations"),
            None => format!("{} ms", self.millis),
        }
    }

    /// The arms, glibc first.
    pub fn arms(&self, program: &Program) -> Vec<Arm> {
        let ours = self.profiles.iter().map(|&profile| Arm::ours(&program.library, profile));
        std::iter::once(Arm::base()).chain(ours).chain(self.peers.iter().map(Arm::peer)).collect()
    }
}

/// Runs the experiment.
///
/// # Errors
/// [`NotLoaded`] when an arm's library does not become the allocator; [`crate::Unsupported`] when there is too little memory or
/// no C++ compiler; when a run fails.
pub fn run(options: &Options, program: &Program, progress: Progress<'_>) -> Result<AllocReport> {
    let manifest = Manifest::gather();
    let plan = Plan::new(options.cases.clone(), options.arms(program), program)?;
    let uncounted = count::probe().err().map(|error| error.to_string());
    let once = plan.cases.len() * plan.arms.len();
    let total = (once * (options.rounds + usize::from(uncounted.is_none()))) as u64;
    let (mut runs, mut counted) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        for (case, arm) in plan.round(round) {
            let what = format!("{}, {}", case.name, arm.name);
            progress(Advance { done: runs.len() as u64, total, what: &what });
            let seed = options.seed.wrapping_add(round as u64);
            let found = plan.starter.run(case, arm, seed, Length::of(case, options));
            runs.push(Run::of(case, arm, round, found.with_context(|| format!("the run of {what} failed"))?));
        }
    }
    for (case, arm) in plan.round(0).filter(|_| uncounted.is_none()) {
        let what = format!("{}, {}, kernel calls", case.name, arm.name);
        progress(Advance { done: (runs.len() + counted.len()) as u64, total, what: &what });
        let found = plan.starter.counted(case, arm, options.seed, Length::of(case, options));
        let found = found.with_context(|| format!("the run of {what} failed"))?;
        let (case, arm, calls) = (case.name, arm.name.clone(), found.calls.unwrap_or_default());
        counted.push(Counted { case, arm, operations: found.phase.operations, calls });
    }
    progress(Advance { done: total, total, what: "done" });
    let cells = summary::cells(&plan.cases, &plan.arms, &runs, &counted, options.seed)?;
    let standings = standing::of(&plan.cases, &plan.arms, &runs)?;
    Ok(AllocReport {
        schema: "memfold-bench-alloc-3",
        manifest,
        options: options.clone(),
        arms: plan.arms,
        uncounted,
        cells,
        standings,
        counted,
        runs,
    })
}

impl Run {
    fn of(case: &Case, arm: &Arm, round: usize, found: Found) -> Run {
        let calls = found.phase.operations.max(1) as f64;
        Run {
            case: case.name,
            arm: arm.name.clone(),
            round,
            operations: found.phase.operations,
            elapsed_ns: found.phase.elapsed_ns,
            ns_per_call: found.phase.elapsed_ns as f64 / calls,
            calls_per_s: found.phase.calls_per_s,
            rss_peak_bytes: found.memory.rss_peak_bytes,
            rss_bytes: found.memory.rss_bytes,
            anonymous_bytes: found.memory.anonymous_bytes,
            minor_faults: found.minor_faults,
            phase_faults: found.phase_faults,
            faults_per_call: found.phase_faults as f64 / calls,
            step_ns: found.phase.step_ns,
        }
    }
}

/// A line of the file of kernel calls.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Counted` and `KernelCalls`.
pub struct KernelRow<'a> {
    pub case: &'static str,
    pub arm: &'a str,
    pub operations: u64,
    pub kernel_calls: u64,
    pub kernel_calls_per_call: f64,
}

impl AllocReport {
    /// The runs in which kernel calls were counted, as flat rows.
    pub fn kernel_rows(&self) -> impl Iterator<Item = KernelRow<'_>> {
        self.counted.iter().map(|counted| KernelRow {
            case: counted.case,
            arm: &counted.arm,
            operations: counted.operations,
            kernel_calls: counted.calls.total(),
            kernel_calls_per_call: counted.calls.total() as f64 / counted.operations.max(1) as f64,
        })
    }

    /// The figures of an allocator on a case.
    pub fn cell(&self, case: &str, arm: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| (cell.case, cell.arm.as_str()) == (case, arm))
    }
}
