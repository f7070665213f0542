//! `memfold demo`: a real server, plain and folded side by side.

use crate::demo::load::{Hot, INTERRUPTED};
use crate::demo::plan::Plan;
use crate::demo::script;
use crate::{bar, exit, options, text};
use anyhow::bail;
use memfold_pager::config::Setting;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

const AFTER_HELP: &str = "\
Examples:
  memfold demo
  memfold demo --hot recent
  memfold demo --cold-age 2s --max-stall 2 --max-cpu 100     in under a minute
  memfold demo --json > demo.json

Folds as `memfold run` does without options, which takes a minute or two. Needs redis-server (apt-get install redis-server), about 1.5 GB of free memory, and a machine
on which programs can be folded (`memfold doctor`).

Exit codes: 0 done and every value right, 1 failed, 2 bad usage, 3 not possible here.";

/// Show a real redis-server, plain and folded side by side.
///
/// Two unmodified servers get the same 300 MB of JSON and more; 5 % of the keys are kept busy on both in
/// turns while the rest of one server's memory is folded. At the end every value is read back and compared.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// How many records of about 1 700 bytes each server gets.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    records: u64,
    /// Where the hot keys are: scattered among cold ones, or those written last.
    #[arg(long, value_enum, default_value_t = Hot::Scattered)]
    hot: Hot,
    /// How long memory must go untouched before it is folded.
    #[arg(long, value_name = "TIME", default_value = Setting::ColdAge.default_text(), value_parser = options::value_of(Setting::ColdAge))]
    cold_age: String,
    /// Share of the time that the folded server may wait for its memory, in per cent.
    #[arg(long, value_name = "PERCENT", default_value = Setting::MaxStall.default_text(), value_parser = options::value_of(Setting::MaxStall))]
    max_stall: String,
    /// Share of one CPU that folding may take, in per cent.
    #[arg(long, value_name = "PERCENT", default_value = Setting::MaxCpu.default_text(), value_parser = options::value_of(Setting::MaxCpu))]
    max_cpu: String,
}

/// Plays the demo and prints what came of it.
///
/// # Errors
/// Something is missing here (exit code 3), a server fails, a value is wrong, or the user interrupts.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Relaxed))?;
    let needed = args.records * 1_700 * 4;
    if let Some(free) = crate::process::field_bytes("/proc/meminfo", "MemAvailable").filter(|f| *f < needed) {
        return Err(exit::unsupported(format!(
            "the demo needs about {} of free memory, and {} is free; take fewer --records",
            text::bytes(needed),
            text::bytes(free)
        )));
    }
    let bar = bar::bar(100, false);
    let plan = Plan {
        records: args.records,
        hot: args.hot,
        cold_age: args.cold_age,
        max_stall: args.max_stall,
        max_cpu: args.max_cpu,
    };
    let result = script::play(&plan, &bar);
    bar.finish_and_clear();
    let report = result?;
    if args.json {
        text::print_json(&report)?;
    } else {
        text::print(&report.human())?;
    }
    if !report.is_right() {
        bail!("values were wrong: this is a defect of memfold, please report it");
    }
    if !report.has_folded() {
        bail!("nothing was folded, so the figures say nothing");
    }
    Ok(ExitCode::SUCCESS)
}
