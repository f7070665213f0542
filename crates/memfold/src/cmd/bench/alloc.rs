//! `memfold bench alloc`: the allocator beside glibc's and every other that is installed.

use super::{count, print, program, with_bar, Reporting};
use crate::exit;
use ::memfold_bench::alloc::{self, scorecard, soak, Case, Options, Peer, Profile, SUITE};
use ::memfold_bench::output::Output;
use ::memfold_bench::worker::Written;
use ::memfold_pager::config::parse_size;
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench alloc                                   the whole suite
  memfold bench alloc --pattern random_mixed,larson --rounds 10 --out runs/a
  memfold bench alloc --pattern random_mixed --slots 5000 --threads 4 --least 32 --most 4K
  memfold bench alloc --pattern random_mixed --operations 200000000    the same work for all: time, faults and kernel calls of it
  memfold bench alloc --profile balanced,lean --peer mine=/opt/lib/libmine.so
  memfold bench alloc --pattern fragmentation --soak 30 --epoch 5    half an hour of each allocator
  memfold bench alloc --scorecard                       all profiles; writes docs/scorecard.md

Peers are libjemalloc, libtcmalloc_minimal, libmimalloc and libsnmallocshim where they are installed; on
Debian: libjemalloc2, libtcmalloc-minimal4, libmimalloc2.0.

Exit codes: 0 done, 1 failed, 2 bad usage or a peer that does not load, 3 not supported here or too little memory.";

/// Time patterns of malloc and free beside every other allocator, with the memory that each takes.
///
/// Every run is a process in a clean environment, with the allocator preloaded; allocators take turns. Reported are calls a
/// second with their spread, resident memory, minor faults, latencies of sampled calls, and kernel calls, which are counted
/// in a run of their own.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    measures: Measures,
    /// Length of a run's measured phase, in milliseconds; a quarter of it comes before, to warm up.
    #[arg(long, value_name = "MS", default_value_t = 160, value_parser = RangedU64ValueParser::<u64>::new().range(10..=600_000))]
    millis: u64,
    /// Let each run make so many calls of the allocator from its start in place of running for a time, the same number under every
    /// allocator, and report time, page faults and kernel calls for each of them.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 40), conflicts_with_all = ["millis", "soak"])]
    operations: Option<u64>,
    /// Runs of each allocator on each pattern; ratios have an interval from 6 on.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count(1_000))]
    rounds: usize,
    /// Our own arms: speed, balanced, lean, secure [default: balanced; with --scorecard all].
    #[arg(long = "profile", value_name = "PROFILE,..", value_delimiter = ',')]
    profiles: Vec<Profile>,
    /// Another allocator to compare with; may be given again.
    #[arg(long = "peer", value_name = "NAME=LIBRARY")]
    peers: Vec<Peer>,
    /// Leave out the allocators that are installed and not named by --peer.
    #[arg(long)]
    no_installed: bool,
    /// Instead of short runs, let one process of each allocator run each pattern for so many minutes.
    #[arg(long, value_name = "MINUTES", value_parser = minutes, requires = "epoch", conflicts_with = "scorecard")]
    soak: Option<u64>,
    /// Length of a soak's epoch, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "soak")]
    epoch: Option<u64>,
    /// Write the scorecard into this file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/scorecard.md")]
    scorecard: Option<PathBuf>,
}

/// Which patterns, and what is changed in them.
#[derive(clap::Args)]
pub(super) struct Measures {
    /// Patterns to run [default: all].
    #[arg(long = "pattern", value_name = "NAME,..", value_delimiter = ',')]
    pub(super) cases: Vec<Case>,
    /// Slots of each thread, instead of the pattern's own.
    #[arg(long, value_name = "N", value_parser = count(100_000_000))]
    slots: Option<usize>,
    /// Threads, instead of the pattern's own.
    #[arg(long, value_name = "N", value_parser = count(256))]
    threads: Option<usize>,
    /// Smallest block, such as 16 or 8K, instead of the pattern's own.
    #[arg(long, value_name = "BYTES", value_parser = block)]
    least: Option<usize>,
    /// Largest block, instead of the pattern's own.
    #[arg(long, value_name = "BYTES", value_parser = block)]
    most: Option<usize>,
    /// What is written of a block in the loops over slots: ends or pages [default: ends; in `bench arena` pages].
    #[arg(long, value_name = "WHAT")]
    written: Option<Written>,
}

impl Measures {
    /// The cases to run.
    ///
    /// # Errors
    /// When a changed measure makes no sense in one of them.
    pub(super) fn cases(&self, usual: &[Case], written: Written) -> Result<Vec<Case>> {
        let chosen = if self.cases.is_empty() { usual } else { &self.cases };
        let changed = |case: &Case| {
            let mut case = *case;
            let job = &mut case.job;
            job.written = self.written.unwrap_or(written);
            job.slots = self.slots.unwrap_or(job.slots);
            job.threads = self.threads.unwrap_or(job.threads);
            job.least_bytes = self.least.unwrap_or(job.least_bytes);
            job.most_bytes = self.most.unwrap_or(job.most_bytes);
            case.job.check().map_err(|error| exit::usage(format!("{}: {error:#}", case.name)))?;
            Ok(case)
        };
        chosen.iter().map(changed).collect()
    }
}

impl Args {
    /// Runs the suite or the soak.
    pub(super) fn run(self) -> Result<ExitCode> {
        if let (Some(soak), Some(epoch)) = (self.soak, self.epoch) {
            if epoch > soak {
                let (epoch, soak) = (epoch as f64 / 1e3, soak as f64 / 6e4);
                return Err(exit::usage(format!(
                    "--epoch {epoch} is longer than --soak {soak}, which is in minutes"
                )));
            }
        }
        if let Some(file) = &self.scorecard {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            if directory.is_some_and(|directory| !directory.is_dir()) {
                return Err(exit::usage(format!(
                    "--scorecard: there is no directory for {}; run it in memfold's source tree, or name a file",
                    file.display()
                )));
            }
        }
        let options = self.options()?;
        let out = self.reporting.prepare()?;
        match (self.soak, self.epoch) {
            (Some(soak), Some(epoch)) => self.soak(soak::Options::new(options, soak, epoch), out.as_ref()),
            _ => self.suite(&options, out.as_ref()),
        }
    }

    fn options(&self) -> Result<Options> {
        let profiles = match (self.profiles.as_slice(), &self.scorecard) {
            ([], Some(_)) => Profile::NAMES.map(|(_, profile)| profile).to_vec(),
            ([], None) => vec![Profile::default()],
            (given, _) => given.to_vec(),
        };
        let mut peers = self.peers.clone();
        if !self.no_installed {
            let named = |peer: &Peer| self.peers.iter().any(|own| own.name == peer.name);
            peers.extend(Peer::installed().into_iter().filter(|peer| !named(peer)));
        }
        for (place, peer) in peers.iter().enumerate() {
            if peers[..place].iter().any(|earlier| earlier.name == peer.name) {
                return Err(exit::usage(format!("--peer: two allocators are called {:?}", peer.name)));
            }
        }
        Ok(Options {
            cases: self.measures.cases(&SUITE, Written::Ends)?,
            profiles,
            peers,
            millis: self.millis,
            operations: self.operations,
            rounds: self.rounds,
            seed: self.reporting.seed,
        })
    }

    fn suite(&self, options: &Options, out: Option<&Output>) -> Result<ExitCode> {
        let report = with_bar(|progress| alloc::run(options, &program()?, progress))?;
        if let Some(out) = out {
            out.rows("runs.csv", &report.runs)?;
            out.rows("kernel_calls.csv", report.kernel_rows())?;
            alloc::draw(&report, &out.below("plots")?)?;
        }
        if let Some(file) = &self.scorecard {
            let page = scorecard::markdown(&report).context("the scorecard cannot be made")?;
            std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
        }
        self.reporting.finish(&report, &report.manifest, out)
    }

    fn soak(&self, options: soak::Options, out: Option<&Output>) -> Result<ExitCode> {
        let report = with_bar(|progress| soak::run(&options, &program()?, progress))?;
        if let Some(out) = out {
            out.rows("epochs.csv", &report.epochs)?;
            report.draw(&out.below("plots")?)?;
            out.result(&report, &report.manifest)?;
        }
        print(self.reporting.json, &report)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A block's size: from 2 bytes to a gigabyte.
fn block(text: &str) -> Result<usize, String> {
    match parse_size(text) {
        Some(bytes) if (2..=1 << 30).contains(&bytes) => Ok(bytes as usize),
        Some(_) => Err("it must lie between 2 and 1G".into()),
        None => Err("a size such as 16, 8K or 1M is needed".into()),
    }
}

/// Minutes, in milliseconds.
fn minutes(text: &str) -> Result<u64, String> {
    number(text, 1e-3, 60.0 * 24.0 * 7.0).map(|minutes| (minutes * 60e3) as u64)
}

/// Seconds, in milliseconds.
fn seconds(text: &str) -> Result<u64, String> {
    number(text, 0.01, 3600.0).map(|seconds| (seconds * 1e3) as u64)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a number from {least} to {most} is needed"))
}
