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

use crate::arguments::{count, region, whole};
use crate::course::{plan, Course, Progress};
use crate::experiment::Experiment;
use crate::output::Output;
use crate::worker::Program;
use anyhow::{ensure, Result};
use clap::ArgAction;
use judge::Judged;
use memfold_experiment::all_different;
use run::Run;
use serde::Serialize;
use std::fmt::{self, Display};
use std::path::PathBuf;

/// What came of it.
pub type Report = crate::experiment::Report<Options>;

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
    ///
    /// # Errors
    /// For an empty one.
    pub fn parse(text: &str) -> Result<Load, String> {
        match text.trim() {
            "" => Err("stress, redis or a command is needed".into()),
            "stress" => Ok(Load::Stress),
            "redis" => Ok(Load::Redis),
            command => Ok(Load::Command(command.to_owned())),
        }
    }
}

/// Run a load under a resident limit with one policy and another in turns; log every pass, compare, and write a page.
///
/// The quantities are those of the report on Bon Chance (2019). With four runs of each policy or more, every difference is
/// called real or noise.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench pagedaemon --policies freebsd,bonchance --out runs/d",
])]
pub struct Options {
    /// The policies, with parameters where they have some; all others are compared with the first.
    // A comma may also stand between parameters, so that one text becomes several; see `Options::prepare`.
    #[arg(long, value_name = "P,..", default_value = "freebsd,bonchance", action = ArgAction::Set, num_args = 1)]
    pub policies: Vec<String>,
    /// Runs of each policy.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1_000))]
    pub runs: usize,
    /// What is run: stress, redis, or a command for the shell.
    #[arg(long, value_name = "LOAD", default_value = "stress", value_parser = Load::parse)]
    pub load: Load,
    /// How much managed memory may be resident.
    #[arg(long = "resident-limit", value_name = "BYTES", default_value = "64M", value_parser = region)]
    pub limit: usize,
    /// Memory that stress or redis uses [default: twice the limit].
    #[arg(long, value_name = "BYTES", value_parser = region)]
    pub memory: Option<usize>,
    /// How long a run of stress or redis takes, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = whole(1..=86_400))]
    pub seconds: u64,
    /// The directory of the results.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub out: PathBuf,
    /// Print JSON.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
}

/// What is found.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Means of each run, in the order of the runs.
    pub runs: Vec<Run>,
    /// Every quantity: each policy beside the first.
    pub quantities: Vec<Judged>,
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = None;

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        self.policies = self.policies.iter().flat_map(|text| split(text)).collect();
        self.memory.get_or_insert(self.limit * 2);
        Ok(())
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        self.check()?;
        std::fs::create_dir_all(self.out.join("runs"))?;
        let plan = plan(&[()], &self.policies, self.runs);
        let (mut course, mut runs) = (Course::of(plan.len(), progress), Vec::new());
        for ((), repeat, policy) in plan {
            let what = format!("{policy}, run {} of {}", repeat + 1, self.runs);
            runs.push(course.run(&what, || run::once(self, &program.library, &policy, repeat))?);
        }
        course.over("plots");
        let quantities = judge::judge(self, &runs);
        Ok(Found { runs, quantities })
    }

    fn keep(report: &Report, output: &Output) -> Result<()> {
        let found = &report.found;
        output.table("runs.csv", &Run::head(), found.runs.iter().map(Run::row))?;
        output.rows("aggregate.csv", found.quantities.iter().flat_map(Judged::flat))?;
        html::write(report, output)
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(self.runs > 0 && !self.policies.is_empty(), "a run and a policy are needed");
        ensure!(all_different(&self.policies), "each policy can be named once");
        let memory = self.memory.unwrap_or(0);
        ensure!(
            matches!(self.load, Load::Command(_)) || memory > self.limit,
            "the load needs more memory ({} MiB) than the limit ({} MiB), or nothing is evicted",
            memory >> 20,
            self.limit >> 20
        );
        Ok(())
    }
}

/// Splits a list of policies; what follows a comma and has `=` but no `:` before it is a further parameter.
pub fn split(text: &str) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let parameter = part.contains('=') && !part.split('=').next().unwrap_or(part).contains(':');
        match policies.last_mut() {
            Some(last) if parameter => {
                last.push(',');
                last.push_str(part);
            }
            _ => policies.push(part.to_owned()),
        }
    }
    policies
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for judged in &self.found.quantities {
            writeln!(f, "{}", judged.sentence(&self.options))?;
        }
        write!(f, "report.html, plots and passes are in {}", self.options.out.display())
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_comma_separates_policies_and_parameters() {
        assert_eq!(split("freebsd:free=0.1,period=60,lru"), ["freebsd:free=0.1,period=60", "lru"]);
        assert_eq!(split("lru,s3fifo:small=0.2"), ["lru", "s3fifo:small=0.2"]);
    }
}
