//! `memfold bench programs`: real programs, plain and folded, in turns.

use super::{count, millis, print, program, region, with_bar};
use crate::{exit, text};
use ::memfold_bench::programs::{self, Arm, Kind, Options};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench programs --only redis,python3 --runs 1   two programs, a table on the terminal
  memfold bench programs --size 1G --runs 6 --out runs/programs
                                                         every program that is installed: tables, plots, a page
  memfold bench programs --together 1                    what is in use scattered over all pages
  memfold bench programs --arms plain,null --idle 30s    what two runs differ by anyway
  memfold bench programs --json | jq .figures            for programs

Each program builds a heap of about --size, lies idle but for a small load of its own, reads all
its data back, says whether they are right, and ends. Folded is `memfold run` with its default
options. A program that is not installed is left out with a line that names its package.

Exit codes: 0 done and every datum right, 1 failed, 2 bad usage, 3 none of the programs is installed.";

/// Run real programs plain and folded in turns: memory, throughput, CPU and the time of the exit.
///
/// Memory is that of all processes of a program, 10, 30, 60 and 120 s after its heap was built. Ratios are medians over pairs
/// of runs, with a 95 % bootstrap interval from six runs on.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The programs: python3, sqlite, redis, redis-save (with snapshots), node, java, go, postgres, chromium [default: all].
    #[arg(long, value_name = "P,..", value_delimiter = ',')]
    only: Vec<Kind>,
    /// What to compare: plain, null (plain once more, for the noise), folded.
    #[arg(long, value_name = "ARM,..", value_delimiter = ',', default_value = "plain,folded")]
    arms: Vec<Arm>,
    /// Runs of each arm of each program.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1_000))]
    runs: usize,
    /// About how much heap each program builds.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = region)]
    size: usize,
    /// The records in use, one in 20, lie in runs of so many that were made one after another; 1 scatters them over the whole heap.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count(1 << 20))]
    together: usize,
    /// How long each lies idle; the columns are those moments that fit in.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = millis)]
    idle: u64,
    /// Also write raw runs, tables, plots and a page into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Change one datum of each program after the load: the first run must fail, or its verification finds nothing.
    #[arg(long, hide = true)]
    spoil: bool,
}

impl Args {
    /// Runs the experiment.
    pub fn run(self) -> Result<ExitCode> {
        let all = || Kind::NAMES.into_iter().map(|(_, kind)| kind).collect();
        let options = Options {
            programs: if self.only.is_empty() { all() } else { self.only },
            arms: self.arms,
            runs: self.runs,
            bytes: self.size as u64,
            together: self.together as u64,
            idle_millis: self.idle,
            spoil: self.spoil,
        };
        let program = program()?;
        options.check().map_err(|error| exit::usage(format!("{error:#}")))?;
        let report = with_bar(|progress| programs::run(&options, &program, self.out.as_deref(), progress))?;
        print(self.json, &report)?;
        if let Some(out) = self.out.filter(|_| !self.json) {
            text::say(format_args!("tables, plots and report.html are in {}", out.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}
