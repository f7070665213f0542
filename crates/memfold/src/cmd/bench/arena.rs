//! `memfold bench arena`: the page arena off and on.

use super::alloc::Measures;
use super::{count, program, with_bar, Reporting};
use ::memfold_bench::alloc::{arena, Case};
use ::memfold_bench::worker::Written;
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use std::process::ExitCode;

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
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    measures: Measures,
    /// Steps of each thread [default: 40000 in mid_mt, 200000 otherwise].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 40))]
    steps: Option<u64>,
    /// Runs with the arena off, and as many with it on.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count(1_000))]
    rounds: usize,
}

impl Args {
    /// Runs the experiment.
    pub(super) fn run(self) -> Result<ExitCode> {
        let usual: Vec<Case> = ["mid_mt", "vm_mixed"].iter().filter_map(|name| name.parse().ok()).collect();
        let options = arena::Options {
            cases: self.measures.cases(&usual, Written::Pages)?,
            steps: self.steps,
            rounds: self.rounds,
            seed: self.reporting.seed,
        };
        let out = self.reporting.prepare()?;
        let report = with_bar(|progress| arena::run(&options, &program()?, progress))?;
        if let Some(out) = &out {
            out.rows("runs.csv", &report.runs)?;
        }
        self.reporting.finish(&report, &report.manifest, out.as_ref())
    }
}
