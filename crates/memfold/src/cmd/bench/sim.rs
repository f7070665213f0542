//! `memfold bench sim`: how fast the simulator's policies are.

use super::{count, print};
use crate::cmd::sim::policies;
use crate::trace_file::{bad, TraceOptions};
use crate::{bar, exit};
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use memfold_sim::format::{Request, Requests};
use memfold_sim::generate::{Generator, Shape};
use memfold_sim::peer::{Peer, PeerError};
use memfold_sim::speed::{self, Options, SpeedError};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench sim                                          every policy over a Zipf trace
  memfold bench sim --peer libCacheSim/_build/bin/cachesim --rounds 6
  memfold bench sim --trace io.oracleGeneral.bin --size 10000 --policy s3fifo,sieve --peer cachesim

With --peer the trace is written to a temporary file in libCacheSim's format, and each policy that cachesim has is run
by both in turns. Both times begin with the reading of that file; the column M/s leaves it out. A ratio has an
interval from 6 rounds on.

Exit codes: 0 done, 1 failed, 2 bad usage.";

/// Time replacement policies on one thread, over a Zipf trace or one at hand, and beside libCacheSim's cachesim.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Run libCacheSim's cachesim, at this path, in turns on the same trace, and print the ratios to it.
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
    /// Policies, with parameters where they have some (s3fifo:small=0.1), or all.
    #[arg(long, value_name = "P[,P]", default_value = "all")]
    policy: String,
    /// A trace to run over, in place of a made-up one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requests", "pages", "skew", "seed"])]
    trace: Option<PathBuf>,
    #[command(flatten)]
    format: TraceOptions,
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
        let peer = self.peer.as_deref().map(Peer::new).transpose();
        let peer = peer.context("--peer: cannot tell the current directory")?;
        let options =
            Options { policies: policies(&self.policy)?, size: self.size, rounds: self.rounds, peer };
        let requests: Requests = match &self.trace {
            Some(path) => self.format.open(path)?,
            None => {
                let shape = Shape::Zipf { skew: self.skew };
                let objects = Generator::new(shape, self.pages, self.requests, self.seed);
                Box::new((0..).zip(objects).map(|(time, object)| Ok(Request { time, object })))
            }
        };
        let theirs =
            options.policies.iter().filter(|spec| options.peer.is_some() && Peer::policy(spec).is_some());
        let runs = self.rounds * (options.policies.len() + theirs.count());
        let progress = bar::bar(runs as u64, self.json);
        let report = speed::run(&options, requests, |_, _| progress.inc(1));
        progress.finish_and_clear();
        print(self.json, &report.map_err(|error| self.blame(error))?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// What the user can mend is bad usage.
    fn blame(&self, error: SpeedError) -> anyhow::Error {
        match (error, &self.trace) {
            (SpeedError::Trace(error), Some(path)) => bad(path, error),
            (error @ SpeedError::TooLarge { .. }, _) => exit::usage(format!("--size: {error}")),
            (error @ SpeedError::Peer(PeerError::Start { .. }), _) => exit::usage(format!("--peer: {error}")),
            (error, _) => error.into(),
        }
    }
}
