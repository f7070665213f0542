//! `memfold bench pager`: workloads with and without the pager, in turns.

use super::workload::Common;
use super::{count, print, program, with_bar, EXAMPLES};
use crate::{exit, text};
use ::memfold_bench::ab::{self, Arm, Measures, Options};
use ::memfold_bench::workload::Kind;
use ::memfold_bench::Unsupported;
use ::memfold_pager::config::Setting;
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run workloads with and without the pager in turns; write tables, plots and a page.
///
/// A directory that holds unfinished results of the same command is continued: finished runs are kept. Ratios are medians
/// over pairs of runs, with a 95 % bootstrap interval from six runs on.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Runs of each arm on each workload.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = count(1_000))]
    runs: usize,
    /// The workloads, see `memfold bench workload --help` [default: all but verify].
    #[arg(long, value_name = "W,..", value_delimiter = ',')]
    only: Vec<Kind>,
    /// What to compare: baseline, null (a second baseline, for the noise), pager, daemon (the workload has a daemon of its own fold
    /// its memory), zram (swap to a device of our own, root).
    #[arg(long, value_name = "ARM,..", value_delimiter = ',', default_value = "baseline,pager")]
    arms: Vec<Arm>,
    /// The directory of the results.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    common: Common,
    /// The highest share of one CPU, in per cent, that folding may take in the arms pager and daemon [default: 3].
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = max_cpu)]
    max_cpu: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the experiment.
    pub fn run(self) -> Result<ExitCode> {
        let Common { duration, region, workers, seed, data, rate, hot, cold_rate, cold_age } = self.common;
        let all =
            || Kind::NAMES.into_iter().map(|(_, kind)| kind).filter(|kind| *kind != Kind::Verify).collect();
        let options = Options {
            workloads: if self.only.is_empty() { all() } else { self.only },
            arms: self.arms,
            runs: self.runs,
            measures: Measures {
                millis: duration,
                bytes: region,
                workers,
                seed,
                data,
                rate,
                cold_millis: cold_age,
                hot_percent: hot,
                cold_rate,
                max_cpu_percent: self.max_cpu,
            },
        };
        let program = program()?;
        options.check().map_err(as_usage)?;
        let folder =
            ab::begin(&self.out, &options).map_err(|error| exit::usage(format!("--out: {error:#}")))?;
        let results = with_bar(|progress| ab::run(&folder, &program, progress))?;
        print(self.json, &results)?;
        if !self.json {
            text::say(format_args!("tables, plots and report.html are in {}", self.out.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The same values as in `memfold run`, in per cent.
fn max_cpu(text: &str) -> Result<f64, String> {
    crate::options::parse(Setting::MaxCpu, text).map(|millionths| millionths as f64 / 1e4)
}

/// What is wrong with a plan is bad usage, unless this machine is what is wrong.
fn as_usage(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Unsupported>() {
        return error;
    }
    exit::usage(format!("{error:#}"))
}
