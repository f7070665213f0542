//! The allocator alone, beside glibc's and any other: the mixed loop of malloc and free, without a pager.
//!
//! Each run is a process of its own; in a round every allocator runs once, and rounds repeat. Throughput is reported
//! with the memory that was resident at its end, because either is easy to have at the other's cost.
//!
//! What it is not: a set of real programs.

use crate::launch::{plain, preload};
use crate::manifest::Manifest;
use crate::process::Memory;
use crate::progress::{Advance, Progress};
use crate::worker::{Job, Mixed, MixedResult, Program, Worker};
use anyhow::{ensure, Context, Result};
use serde::Serialize;
use stats::{Moments, Ratio};
use std::fmt;
use std::path::{Path, PathBuf};

/// The arm that all others are compared with.
const BASE: &str = "glibc";

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Slots a thread; one condition each.
    pub slots: Vec<usize>,
    /// Threads; one condition each.
    pub threads: Vec<usize>,
    /// Smallest block, bytes.
    pub least_bytes: usize,
    /// Largest block, bytes.
    pub most_bytes: usize,
    /// Length of a run, milliseconds.
    pub millis: u64,
    /// Runs of each allocator under each condition.
    pub rounds: usize,
    /// Other allocators: name and shared library.
    pub peers: Vec<Peer>,
    /// What sizes and slots are drawn from.
    pub seed: u64,
}

/// An allocator to compare with, as a library to preload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its name in results.
    pub name: String,
    /// Its shared library.
    pub library: PathBuf,
}

impl std::str::FromStr for Peer {
    type Err = String;

    /// From `name=path.so`; the file must exist, and a name of ours is refused.
    fn from_str(text: &str) -> Result<Peer, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| {
            format!("{text:?} is not NAME=LIBRARY, such as mimalloc=/usr/lib/libmimalloc.so")
        })?;
        if name.is_empty() || name == BASE || name == "memfold" {
            return Err(format!("a peer cannot be called {name:?}: choose another name before the ="));
        }
        let library = Path::new(path)
            .canonicalize()
            .map_err(|error| format!("cannot use the library {path:?}: {error}"))?;
        Ok(Peer { name: name.to_owned(), library })
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The allocator.
    pub arm: String,
    /// Slots a thread.
    pub slots: usize,
    /// Threads.
    pub threads: usize,
    /// Number of the round, from 0.
    pub round: usize,
    /// Calls of malloc or free a second.
    pub calls_per_s: f64,
    /// Most memory that was resident, bytes.
    pub rss_peak_bytes: u64,
    /// Resident anonymous memory at the end of the loop, bytes.
    pub anonymous_bytes: u64,
}

/// All runs of one allocator under one condition.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport {
    /// The allocator.
    pub arm: String,
    /// Calls of malloc or free a second; median of runs.
    pub calls_per_s: f64,
    /// Spread of it over the runs.
    pub calls_per_s_moments: Moments,
    /// Most resident memory, bytes; median of runs.
    pub rss_peak_bytes: f64,
    /// Calls a second, over glibc's.
    pub calls_over_glibc: Ratio,
    /// Resident anonymous memory at the end, bytes; median of runs.
    pub anonymous_bytes: f64,
    /// Peak resident memory, over glibc's. Holds the worker's and the library's code too.
    pub rss_over_glibc: Ratio,
    /// Anonymous memory at the end, over glibc's.
    pub anonymous_over_glibc: Ratio,
}

/// One condition.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    /// Slots a thread.
    pub slots: usize,
    /// Threads.
    pub threads: usize,
    /// The allocators, glibc first.
    pub arms: Vec<ArmReport>,
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
    /// Figures by condition.
    pub conditions: Vec<Condition>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Runs the experiment.
///
/// # Errors
/// When a run fails.
pub fn run(options: &Options, program: &Program, progress: Progress<'_>) -> Result<AllocReport> {
    ensure!(options.rounds > 0, "at least one round is needed");
    let manifest = Manifest::gather();
    let mut arms: Vec<(String, Option<PathBuf>)> =
        vec![(BASE.into(), None), ("memfold".into(), Some(program.library.clone()))];
    arms.extend(options.peers.iter().map(|peer| (peer.name.clone(), Some(peer.library.clone()))));
    let places: Vec<(usize, usize)> = options
        .slots
        .iter()
        .flat_map(|&slots| options.threads.iter().map(move |&threads| (slots, threads)))
        .collect();
    let total = (places.len() * options.rounds * arms.len()) as u64;
    let (mut runs, mut conditions) = (Vec::new(), Vec::new());
    for (slots, threads) in places {
        for round in 0..options.rounds {
            for (arm, library) in &arms {
                let what = format!("{arm}, {slots} slots, {threads} threads");
                progress(Advance { done: runs.len() as u64, total, what: &what });
                let seed = options.seed.wrapping_add(round as u64);
                let result = once(options, program, (slots, threads), seed, library.as_deref())
                    .with_context(|| format!("the run of {what} failed"))?;
                let Memory { rss_peak_bytes, anonymous_bytes, .. } = result.memory;
                let calls_per_s = result.calls_per_s;
                runs.push(Run {
                    arm: arm.clone(),
                    slots,
                    threads,
                    round,
                    calls_per_s,
                    rss_peak_bytes,
                    anonymous_bytes,
                });
            }
        }
        conditions.push(condition(&runs, &arms, (slots, threads), options.seed)?);
    }
    progress(Advance { done: total, total, what: "done" });
    Ok(AllocReport { schema: "memfold-bench-alloc-1", manifest, options: options.clone(), conditions, runs })
}

fn once(
    options: &Options,
    program: &Program,
    (slots, threads): (usize, usize),
    seed: u64,
    library: Option<&Path>,
) -> Result<MixedResult> {
    let Options { least_bytes, most_bytes, millis, .. } = *options;
    let job = Job::Mixed(Mixed { slots, threads, least_bytes, most_bytes, millis, seed });
    let mut worker = Worker::start(program, &job, |command| match library {
        None => plain(command),
        Some(library) => preload(command, library),
    })?;
    worker.receive()
}

fn condition(
    runs: &[Run],
    arms: &[(String, Option<PathBuf>)],
    (slots, threads): (usize, usize),
    seed: u64,
) -> Result<Condition> {
    let column = |arm: &str, figure: fn(&Run) -> f64| -> Vec<f64> {
        let of =
            runs.iter().filter(|run| (run.arm.as_str(), run.slots, run.threads) == (arm, slots, threads));
        of.map(figure).collect()
    };
    let calls: fn(&Run) -> f64 = |run| run.calls_per_s;
    let rss: fn(&Run) -> f64 = |run| run.rss_peak_bytes as f64;
    let anonymous: fn(&Run) -> f64 = |run| run.anonymous_bytes as f64;
    let report = |(arm, _): &(String, Option<PathBuf>)| -> Result<ArmReport> {
        let (own_calls, own_rss, own_anonymous) =
            (column(arm, calls), column(arm, rss), column(arm, anonymous));
        Ok(ArmReport {
            arm: arm.clone(),
            calls_per_s: stats::median(&own_calls).context("there are no runs")?,
            calls_per_s_moments: Moments::of(&own_calls).context("there are no runs")?,
            rss_peak_bytes: stats::median(&own_rss).context("there are no runs")?,
            calls_over_glibc: Ratio::of(&own_calls, &column(BASE, calls), seed)?,
            anonymous_bytes: stats::median(&own_anonymous).context("there are no runs")?,
            anonymous_over_glibc: Ratio::of(&own_anonymous, &column(BASE, anonymous), seed)?,
            rss_over_glibc: Ratio::of(&own_rss, &column(BASE, rss), seed)?,
        })
    };
    Ok(Condition { slots, threads, arms: arms.iter().map(report).collect::<Result<_>>()? })
}

impl fmt::Display for AllocReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "mixed malloc and free of {}..={} bytes  ({} runs of {} ms an arm, interleaved, medians)",
            self.options.least_bytes, self.options.most_bytes, self.options.rounds, self.options.millis
        )?;
        for condition in &self.conditions {
            writeln!(f, "{} slots, {} threads", condition.slots, condition.threads)?;
            for arm in &condition.arms {
                let mib = |bytes: f64| bytes / f64::from(1 << 20);
                write!(
                    f,
                    "  {:<12}{:>8.1} M calls/s   {:>6.1} MiB peak, {:>6.1} MiB anonymous",
                    arm.arm,
                    arm.calls_per_s / 1e6,
                    mib(arm.rss_peak_bytes),
                    mib(arm.anonymous_bytes)
                )?;
                if arm.arm != BASE {
                    write!(
                        f,
                        "\n  {:<12}over glibc: calls {}   peak {}   anonymous {}",
                        "", arm.calls_over_glibc, arm.rss_over_glibc, arm.anonymous_over_glibc
                    )?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_an_existing_library() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        assert_eq!(format!("other={path}").parse::<Peer>().unwrap().name, "other");
        for bad in
            [format!("{path}"), format!("={path}"), format!("glibc={path}"), "other=/no/such/file".into()]
        {
            assert!(bad.parse::<Peer>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_allocator_is_divided_by_glibc_of_its_own_round() {
        let run = |arm: &str, round: usize, calls_per_s: f64| Run {
            arm: arm.into(),
            slots: 400,
            threads: 1,
            round,
            calls_per_s,
            rss_peak_bytes: 1000,
            anonymous_bytes: 10,
        };
        let runs: Vec<Run> = (1..=6)
            .flat_map(|round| {
                [run(BASE, round, 10.0 * round as f64), run("memfold", round, 15.0 * round as f64)]
            })
            .collect();
        let arms = [(BASE.to_owned(), None), ("memfold".to_owned(), None)];
        let condition = condition(&runs, &arms, (400, 1), 1).unwrap();
        assert_eq!(condition.arms[1].calls_over_glibc.median, 1.5);
        assert!(condition.arms[1].calls_over_glibc.differs);
        assert!(!condition.arms[1].rss_over_glibc.differs);
    }
}
