//! The page-daemon experiment: the same load under a resident limit, with one policy and another in turns.
//!
//! Source: the report on Bon Chance (Huynh, Lin, Mirijanyan and Calaimany, 2019), which ran `stress` five times with each
//! policy and compared averages over passes. Here every quantity also says whether its difference can be chance.
//!
//! What it is not: a benchmark of throughput; see [`crate::ab`].
//!
//! Invariants: arms are interleaved; every pass of every run is kept as it was logged; a load that fails yields no figures.

mod html;
mod judge;
mod quantity;
mod run;

pub use quantity::Quantity;

use crate::course::turns;
use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::output::Output;
use anyhow::{ensure, Context, Result};
use judge::Judged;
use run::Run;
use serde::Serialize;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

/// What is run under the limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Debian's `stress`: one worker that writes more memory than the limit, again and again.
    Stress,
    /// `redis-server` with more values than the limit holds, asked by `redis-benchmark`.
    Redis,
    /// A command for the shell.
    Command(String),
}

impl Load {
    /// Reads `stress`, `redis`, or any command.
    pub fn parse(text: &str) -> Load {
        match text {
            "stress" => Load::Stress,
            "redis" => Load::Redis,
            command => Load::Command(command.to_owned()),
        }
    }
}

/// An experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The policies, with their parameters; all others are compared with the first.
    pub policies: Vec<String>,
    /// Runs of each policy.
    pub runs: usize,
    /// The load.
    pub load: Load,
    /// Bytes that may be resident.
    pub limit: u64,
    /// Memory of a load of ours, bytes.
    pub memory: u64,
    /// Length of a run of a load of ours, s.
    pub seconds: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was run.
    pub options: Options,
    /// What it ran on.
    pub manifest: Manifest,
    /// Means of each run, in the order of the runs.
    pub runs: Vec<Run>,
    /// Every quantity: each policy beside the first.
    pub quantities: Vec<Judged>,
    #[serde(skip)]
    folder: PathBuf,
}

/// Runs the experiment and writes everything into `folder`.
///
/// # Errors
/// When the plan makes no sense, a load is not installed or fails, or a file cannot be written.
pub fn run(options: &Options, library: &Path, folder: &Path, progress: Progress<'_>) -> Result<Report> {
    check(options)?;
    let output = Output::create(folder)?;
    let manifest = Manifest::gather();
    std::fs::create_dir_all(folder.join("runs"))?;
    let total = (options.runs * options.policies.len()) as u64;
    let mut runs = Vec::new();
    for repeat in 0..options.runs {
        for policy in turns(&options.policies, repeat) {
            let what = format!("{policy}, run {} of {}", repeat + 1, options.runs);
            progress(Advance { done: runs.len() as u64, total, what: &what });
            let run = run::once(options, library, folder, &policy, repeat)
                .with_context(|| format!("{what} failed"))?;
            runs.push(run);
        }
    }
    progress(Advance { done: total, total, what: "plots" });
    let quantities = judge::judge(options, &runs);
    let report = Report { options: options.clone(), manifest, runs, quantities, folder: folder.to_owned() };
    output.table("runs.csv", &Run::head(), report.runs.iter().map(Run::row))?;
    output.rows("aggregate.csv", report.quantities.iter().flat_map(Judged::flat))?;
    output.result(&report, &report.manifest)?;
    html::write(&report)?;
    Ok(report)
}

fn check(options: &Options) -> Result<()> {
    ensure!(options.runs > 0 && !options.policies.is_empty(), "a run and a policy are needed");
    let mut names = options.policies.clone();
    names.sort();
    names.dedup();
    ensure!(names.len() == options.policies.len(), "each policy can be named once");
    ensure!(
        matches!(options.load, Load::Command(_)) || options.memory > options.limit,
        "the load needs more memory ({} MiB) than the limit ({} MiB), or nothing is evicted",
        options.memory >> 20,
        options.limit >> 20
    );
    Ok(())
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for judged in &self.quantities {
            writeln!(f, "{}", judged.sentence(&self.options))?;
        }
        write!(f, "report.html, plots and passes are in {}", self.folder.display())
    }
}
