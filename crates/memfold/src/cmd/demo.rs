//! `memfold demo`: a real server, plain and folded side by side.

use std::process::ExitCode;

/// Show a real redis-server, plain and folded side by side, in under a minute.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the demonstration.
///
/// # Errors
/// Not there yet.
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    Err(crate::exit::unsupported("this build has no demo"))
}
