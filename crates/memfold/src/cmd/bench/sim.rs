//! `memfold bench sim`: how fast the simulator's policies are.

use super::{count, print};
use crate::bar;
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use sim::speed::{self, Options};
use std::process::ExitCode;

/// Time every replacement policy on one thread over a Zipf trace, beside libCacheSim's figures.
///
/// The figures beside are for the default options, on a virtual machine of 2 CPUs (AMD EPYC).
#[derive(clap::Args)]
#[command(after_help = super::EXAMPLES)]
pub(super) struct Args {
    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=4_000_000_000))]
    requests: u64,
    /// Pages that are requested.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(8..=1 << 30))]
    pages: u64,
    /// How much the first pages are preferred.
    #[arg(long, default_value_t = 1.0, value_parser = crate::cmd::trace::skew)]
    skew: f64,
    /// Pages of the cache.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count(1 << 30))]
    size: usize,
    /// Runs of each policy.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1_000))]
    rounds: usize,
    /// What the trace is made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        let Args { requests, pages, skew, size, rounds, seed, json } = self;
        let progress = bar::bar((rounds * policy::replace::names().count()) as u64, json);
        let report = speed::run(Options { requests, pages, skew, size, rounds, seed }, || progress.inc(1))?;
        progress.finish_and_clear();
        print(json, &report)?;
        Ok(ExitCode::SUCCESS)
    }
}
