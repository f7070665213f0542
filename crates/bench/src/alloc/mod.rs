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
pub mod programs;
mod run;
pub mod scorecard;
mod show;
pub mod soak;
mod standing;
mod summary;

pub use arm::{Arm, NotLoaded, Peer, Profile, BASE, OURS};
pub use case::{Case, Measures, SUITE};
pub use count::KernelCalls;
pub use standing::Standing;
pub use summary::{Cell, Latency};

use crate::arguments::{count as number_of, number, whole};
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::{Program, Written};
use anyhow::{ensure, Context, Result};
use memfold_experiment::runs::Ran;
use memfold_stats::Histogram;
use plan::Plan;
use run::{Found, Length};
use serde::Serialize;
use standing::Figures;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  memfold bench alloc                                   the whole suite
  memfold bench alloc --pattern random_mixed,larson --rounds 10 --out runs/a
  memfold bench alloc --pattern random_mixed --slots 5000 --threads 4 --least 32 --most 4K
  memfold bench alloc --pattern random_mixed --operations 200000000    the same work for all: time, faults and kernel calls of it
  memfold bench alloc --profile balanced,lean --peer mine=/opt/lib/libmine.so
  memfold bench alloc --pattern fragmentation --soak 30 --epoch 5    half an hour of each allocator
  memfold bench alloc --scorecard                       all profiles; writes docs/scorecard.md
  memfold bench alloc --programs /tmp/peers/programs --rounds 6    mimalloc-bench's programs, as scripts/peers builds them
  memfold bench alloc --programs scripts/untuned --rounds 6 --scorecard    a compiler, python3, node and others as they are

Peers are libjemalloc, libtcmalloc_minimal, libmimalloc and libsnmallocshim where they are installed; on
Debian: libjemalloc2, libtcmalloc-minimal4, libmimalloc2.0.

Exit codes: 0 done, 1 failed, 2 bad usage or a peer that does not load, 3 not supported here or too little memory.";

/// Time patterns of malloc and free beside every other allocator, with the memory that each takes.
///
/// Every run is a process in a clean environment, with the allocator preloaded; allocators take turns. Reported are calls a
/// second with their spread, resident memory, minor faults, latencies of sampled calls, and kernel calls, which are counted
/// in a run of their own.
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
    /// Length of a run's measured phase, in milliseconds; a quarter of it comes before, to warm up.
    #[arg(long, value_name = "MS", default_value_t = 160, value_parser = whole(10..=600_000))]
    pub millis: u64,
    /// Let each run make so many calls of the allocator from its start in place of running for a time, the same number under every
    /// allocator, and report time, page faults and kernel calls for each of them.
    #[arg(long, value_name = "N", value_parser = whole(1..=1 << 40), conflicts_with_all = ["millis", "soak"])]
    pub operations: Option<u64>,
    /// Runs of each allocator on each pattern; ratios have an interval from 6 on.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = number_of(1_000))]
    pub rounds: usize,
    /// Our own arms: speed, balanced, lean, secure [default: balanced; with --scorecard all].
    #[arg(long = "profile", value_name = "PROFILE,..", value_delimiter = ',')]
    pub profiles: Vec<Profile>,
    /// Another allocator to compare with; may be given again.
    #[arg(long = "peer", value_name = "NAME=LIBRARY")]
    pub peers: Vec<Peer>,
    /// Leave out the allocators that are installed and not named by --peer.
    #[arg(long)]
    #[serde(skip)]
    pub no_installed: bool,
    /// Instead of short runs, let one process of each allocator run each pattern for so many minutes.
    #[arg(long, value_name = "MINUTES", value_parser = minutes, requires = "epoch", conflicts_with = "scorecard")]
    #[serde(skip)]
    pub soak: Option<u64>,
    /// Length of a soak's epoch, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "soak")]
    #[serde(skip)]
    pub epoch: Option<u64>,
    /// Run the programs of mimalloc-bench that are in this directory, and whatever else is executable there, in place of the patterns.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["soak", "operations", "millis", "cases"])]
    #[serde(skip)]
    pub programs: Option<PathBuf>,
    /// Of them only these, such as cfrac,larsonN [default: all that are there].
    #[arg(long = "program", value_name = "NAME,..", value_delimiter = ',', requires = "programs")]
    #[serde(skip)]
    pub only: Vec<String>,
    /// Write the scorecard into this file; with --programs, a section of it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/scorecard.md")]
    #[serde(skip)]
    pub scorecard: Option<PathBuf>,
}

/// Minutes, in milliseconds.
fn minutes(text: &str) -> Result<u64, String> {
    number(1e-3, 60.0 * 24.0 * 7.0)(text).map(|minutes| (minutes * 60e3) as u64)
}

/// Seconds, in milliseconds.
fn seconds(text: &str) -> Result<u64, String> {
    number(0.01, 3600.0)(text).map(|seconds| (seconds * 1e3) as u64)
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

/// What the suite finds.
#[derive(Clone, Debug, Serialize)]
pub struct Suite {
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

    /// The soak, if one is wanted instead of the suite.
    pub fn soak(&self) -> Option<soak::Options> {
        let (soak_millis, epoch_millis) = self.soak.zip(self.epoch)?;
        Some(soak::Options { suite: self.clone(), soak_millis, epoch_millis })
    }

    /// The programs, if they are wanted instead of the suite.
    pub fn programs(&self) -> Option<programs::Options> {
        let directory = self.programs.clone()?;
        Some(programs::Options { suite: self.clone(), directory, programs: self.only.clone() })
    }

    /// The arms, glibc first.
    pub fn arms(&self, program: &Program) -> Vec<Arm> {
        let ours = self.profiles.iter().map(|&profile| Arm::ours(&program.library, profile));
        std::iter::once(Arm::base()).chain(ours).chain(self.peers.iter().map(Arm::peer)).collect()
    }
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-alloc-3");

    type Found = Suite;

    fn prepare(&mut self) -> Result<()> {
        if let Some(file) = &self.scorecard {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            ensure!(
                directory.is_none_or(|directory| directory.is_dir()),
                "--scorecard: there is no directory for {}; run it in memfold's source tree, or name a file",
                file.display()
            );
        }
        if self.profiles.is_empty() {
            let all = self.scorecard.is_some() && self.programs.is_none();
            self.profiles = if all { Profile::ALL.to_vec() } else { vec![Profile::default()] };
        }
        let named: Vec<String> = self.peers.iter().map(|peer| peer.name.clone()).collect();
        if !self.no_installed {
            self.peers.extend(Peer::installed().into_iter().filter(|peer| !named.contains(&peer.name)));
        }
        for (place, name) in named.iter().enumerate() {
            ensure!(!named[..place].contains(name), "--peer: two allocators are called {name:?}");
        }
        self.measures.prepare(&SUITE, Written::Ends)
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Suite> {
        let plan = Plan::new(&self.measures.cases, self.arms(program), program)?;
        let uncounted = count::probe().err().map(|error| error.to_string());
        let once = plan.cases.len() * plan.arms.len();
        let mut course = Course::of(once * (self.rounds + usize::from(uncounted.is_none())), progress);
        let runs = plan.runs(&mut course, self.rounds, self.seed, |case| Length::of(case, self))?;
        let mut counted = Vec::new();
        for (case, arm) in plan.round(0).filter(|_| uncounted.is_none()) {
            let what = format!("{}, {}, kernel calls", case.name, arm.name);
            let found =
                course.run(&what, || plan.starter.counted(case, arm, self.seed, Length::of(case, self)))?;
            let (case, arm, calls) = (case.name, arm.name.clone(), found.calls.unwrap_or_default());
            counted.push(Counted { case, arm, operations: found.phase.operations, calls });
        }
        course.over("done");
        let cells = summary::cells(plan.cases, &plan.arms, &runs, &counted)?;
        let names: Vec<&'static str> = plan.cases.iter().map(|case| case.name).collect();
        let figures =
            Figures { speed: |run: &Run| run.calls_per_s, rss: |run: &Run| run.rss_peak_bytes as f64 };
        let standings = standing::of(&names, &plan.arms, &runs, figures)?;
        Ok(Suite { arms: plan.arms, uncounted, cells, standings, counted, runs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", &report.found.runs)?;
        output.rows("kernel_calls.csv", report.found.kernel_rows())?;
        output.plots(&charts::all(report))
    }

    fn finish(report: &Report<Options>) -> Result<()> {
        let Some(file) = &report.options.scorecard else { return Ok(()) };
        let page = scorecard::markdown(report).context("the scorecard cannot be made")?;
        // What --programs wrote there stays.
        let before = std::fs::read_to_string(file).unwrap_or_default();
        let page = page + programs::page::sections(&before);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Ran for Run {
    type Place<'a> = (&'a str, &'a str);

    fn place(&self) -> (&str, &str) {
        (self.case, &self.arm)
    }

    fn repeat(&self) -> usize {
        self.round
    }
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

impl Suite {
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
