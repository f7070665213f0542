//! `memfold bench`: measure.

use std::process::ExitCode;

/// Measure what folding costs and saves.
#[derive(clap::Args)]
pub struct Args {}

/// Runs a benchmark.
///
/// # Errors
/// There is none to run.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    Err(crate::exit::unsupported("this build has no benchmarks"))
}
