//! `memfold bench sources`: what each access source takes for cold, beside the truth.

use crate::{options, text};
use ::memfold_bench::sources::{self, Options, Row};
use anyhow::Result;
use memfold_pager::config::{parse_duration, parse_size, Setting};
use memfold_pager::source::Kind;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench sources                                  every source, 64 MiB, 10 s each
  sudo memfold bench sources --source damon-paddr,probe  DAMON needs root, and nobody else who uses it
  memfold bench sources --cold-age 500ms --json

Exit codes: 0 done (a source that cannot be had here is named), 1 failed, 2 bad usage.";

/// Compare what each access source takes for cold with what a workload has not touched.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The sources: writes, probe, damon-vaddr, damon-paddr, idle.
    #[arg(
        long,
        value_name = "SOURCE,..",
        value_delimiter = ',',
        default_value = "writes,probe,damon-vaddr,damon-paddr,idle",
        value_parser = kind
    )]
    source: Vec<Kind>,
    /// Memory of the workload.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    region: usize,
    /// How long each source is watched.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = millis)]
    duration: u64,
    /// How long a page must be untouched to be cold.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = millis)]
    cold_age: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<Kind, String> {
    options::parse(Setting::Source, text).map(Kind::from_number)
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).filter(|bytes| (4 << 20..=64 << 30).contains(bytes));
    bytes.map(|bytes| bytes as usize).ok_or_else(|| "a size from 4M to 64G is needed".into())
}

fn millis(text: &str) -> Result<u64, String> {
    let millis = parse_duration(text).map(|ns| ns / 1_000_000).filter(|ms| (20..=3_600_000).contains(ms));
    millis.ok_or_else(|| "a time from 20ms to 1h is needed".into())
}

impl Args {
    /// Tries the sources, one after the other.
    pub(super) fn run(self) -> Result<ExitCode> {
        let options = Options { bytes: self.region, millis: self.duration, cold_millis: self.cold_age };
        let rows =
            self.source.iter().map(|kind| sources::run(*kind, &options)).collect::<Result<Vec<Row>>>()?;
        if self.json {
            text::print_json(&rows)?;
            return Ok(ExitCode::SUCCESS);
        }
        let share =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.1} %", value * 100.0));
        let mut table = vec![["source", "precision", "recall", "CPU", ""].map(str::to_owned).to_vec()];
        for row in &rows {
            let cpu = row.cpu_pct.map_or("-".to_owned(), |value| format!("{value:.2} %"));
            let why = row.unsupported.clone().unwrap_or_default();
            table.push(vec![row.source.to_owned(), share(row.precision), share(row.recall), cpu, why]);
        }
        text::print(&text::table(&table))?;
        Ok(ExitCode::SUCCESS)
    }
}
