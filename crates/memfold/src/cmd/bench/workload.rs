//! `memfold bench workload`: one workload as a program, to be run with the pager or without.

use super::{count, print, region, share, EXAMPLES};
use ::memfold_bench::workload::{Data, Kind, Workload};
use anyhow::Result;
use std::process::ExitCode;

/// Run a workload and report its units of work, their times and its cold memory.
///
/// It runs as it was started: `memfold run -- memfold bench workload zipf_heap` is folded, without `memfold run` it is not.
/// What is not given is left to the workload.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// interactive_burst, anon_streamer, random_touch_heap, mmap_churn, phase_shift, zipf_heap, fork_touch_exit or verify.
    #[arg(value_name = "NAME")]
    kind: Kind,
    #[command(flatten)]
    common: Common,
    /// Touches of blocks in a unit.
    #[arg(long, value_name = "N", value_parser = count(1 << 30))]
    touches: Option<usize>,
    /// Rounds of computing in a unit, about 2 ns each.
    #[arg(long, value_name = "N")]
    work: Option<u64>,
    /// How long a working set stays where it is, such as 2s.
    #[arg(long, value_name = "TIME", value_parser = super::millis)]
    phase: Option<u64>,
    /// Exponent of the popularity of pieces (zipf_heap).
    #[arg(long, value_name = "X", value_parser = skew)]
    skew: Option<f64>,
    /// Size of the mappings that come and go (mmap_churn).
    #[arg(long, value_name = "BYTES", value_parser = region)]
    churn: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures that all workloads have.
#[derive(clap::Args)]
pub struct Common {
    /// How long to run once the memory is filled, such as 10s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::millis)]
    pub duration: u64,
    /// Memory that the workload keeps.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = region)]
    pub region: usize,
    /// Threads, each with its share of the memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(256))]
    pub workers: usize,
    /// What contents and orders are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What the memory is filled with: mixed, text, json, pointers, floats or random.
    #[arg(long, value_name = "KIND", default_value = "mixed")]
    pub data: Data,
    /// Units a second that each worker begins; 0 for as many as it can.
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    pub rate: f64,
    /// Share of the memory that is in use at a time, in per cent.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub hot: Option<f64>,
    /// Touches of memory anywhere, a second and worker.
    #[arg(long, value_name = "N", value_parser = rate)]
    pub cold_rate: Option<f64>,
    /// How long memory must be untouched to be cold.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::millis)]
    pub cold_age: u64,
}

impl Args {
    /// Runs the workload.
    pub fn run(self) -> Result<ExitCode> {
        let (usual, common) = (Workload::new(self.kind), self.common);
        let workload = Workload {
            millis: common.duration,
            bytes: common.region,
            workers: common.workers,
            seed: common.seed,
            data: common.data,
            rate: common.rate,
            touches: self.touches.unwrap_or(usual.touches),
            work: self.work.unwrap_or(usual.work),
            hot_percent: common.hot.unwrap_or(usual.hot_percent),
            cold_rate: common.cold_rate.unwrap_or(usual.cold_rate),
            phase_millis: self.phase.unwrap_or(usual.phase_millis),
            skew: self.skew.unwrap_or(usual.skew),
            churn_bytes: self.churn.unwrap_or(usual.churn_bytes),
            cold_millis: common.cold_age,
            ..usual
        };
        print(self.json, &workload.prepare()?.run()?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let allowed = 0.0..=1e9;
    text.parse()
        .ok()
        .filter(|rate| allowed.contains(rate))
        .ok_or_else(|| "a number from 0 to 1e9 is needed".into())
}

fn skew(text: &str) -> Result<f64, String> {
    let allowed = 0.0..=10.0;
    text.parse()
        .ok()
        .filter(|skew| allowed.contains(skew))
        .ok_or_else(|| "a number from 0 to 10 is needed".into())
}
