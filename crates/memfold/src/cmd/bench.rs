//! `memfold bench`: measure what folding costs and saves, and verify that it loses nothing.
//!
//! What it is not: the experiments. Those are in the `bench` crate; here are their options, the printing of their
//! results, and the start of their worker processes, which are this executable with the hidden command `bench worker`.

mod pagedaemon;
mod pager;
mod sim;
mod sources;
mod workload;

use crate::{bar, exit, library, text};
use ::memfold_bench::alloc::{self, arena, NotLoaded};
use ::memfold_bench::arguments::Reporting;
use ::memfold_bench::course::Advance;
use ::memfold_bench::experiment::{Experiment, Report};
use ::memfold_bench::output::Output;
use ::memfold_bench::verify::{self, Work};
use ::memfold_bench::worker::{self, Program};
use ::memfold_bench::{fault, fold, overhead, programs, Unsupported};
use ::memfold_pager::config::{parse_duration, parse_size};
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench fault --vs zram              touches of evicted pages, beside swap to zram (root)
  memfold bench fold --heaps json,python3    what it costs to fold a page, by step
  memfold bench fault --json --out runs/1    the same for programs, raw runs kept
  memfold bench alloc                        the allocator beside every other that is installed
  memfold bench overhead                     what folding costs programs that gain nothing
  memfold bench pager --runs 6 --out runs/p  workloads with and without the pager: tables, plots, a page
  memfold bench programs --only redis,python3 real programs, plain and folded
  memfold bench sim --peer cachesim          the replacement policies' speed, and libCacheSim's beside
  memfold bench pagedaemon --policies freebsd,bonchance --out runs/d
  memfold run -- memfold bench verify        does any byte get lost?

Exit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here.";

/// Measure what folding costs and saves.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Fault(fault::Options),
    Fold(fold::Options),
    Alloc(alloc::Options),
    Arena(arena::Options),
    Overhead(overhead::Options),
    Pager(pager::Args),
    Programs(programs::Options),
    Sources(sources::Args),
    Pagedaemon(pagedaemon::Args),
    Workload(workload::Args),
    Sim(sim::Args),
    Verify(Verify),
    /// The body of a worker process.
    #[command(hide = true)]
    Worker {
        /// The job, as JSON.
        job: String,
    },
}

/// Check every byte while threads do all that programs do to memory and everything is evicted again and again.
///
/// Verifies the pager that it is started with: `memfold run -- memfold bench verify`. Started alone, it is a plain run.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Verify {
    /// How long.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400 * 30))]
    seconds: u64,
    /// Stop each thread after so many operations.
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count(256))]
    threads: usize,
    /// Where all sequences and contents begin; the same seed repeats what each thread does.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Kinds of work to leave out: raw, remap, unmap, drop, protect, heap, calls, fork, churn, sabotage.
    #[arg(long, value_name = "WORK,..", value_delimiter = ',')]
    without: Vec<Work>,
    /// Change the pager's settings and limits at random as well; `make torture` does so for hours.
    #[arg(long)]
    torture: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs an experiment, a verification, or the body of a worker.
///
/// # Errors
/// What the experiment met; with exit code 3 where this machine lacks what it needs.
pub fn run(args: Args) -> Result<ExitCode> {
    let outcome = match args.what {
        What::Fault(options) => carry_out(options),
        What::Fold(options) => carry_out(options),
        What::Alloc(options) => match options.soak() {
            Some(soak) => carry_out(soak),
            None => carry_out(options),
        },
        What::Arena(options) => carry_out(options),
        What::Overhead(options) => carry_out(options),
        What::Sources(args) => args.run(),
        What::Pager(args) => args.run(),
        What::Programs(options) => carry_out(options),
        What::Pagedaemon(args) => args.run(),
        What::Workload(args) => args.run(),
        What::Sim(args) => args.run(),
        What::Verify(args) => args.run(),
        What::Worker { job } => worker::main(&job).map(|()| ExitCode::SUCCESS),
    };
    outcome.map_err(|error| match (error.downcast_ref::<Unsupported>(), error.downcast_ref::<NotLoaded>()) {
        (Some(_), _) => exit::unsupported(format!("{error:#}")),
        (_, Some(_)) => exit::usage(format!("{error:#}")),
        _ => error,
    })
}

/// Carries an experiment out.
fn carry_out<E: Experiment>(mut options: E) -> Result<ExitCode>
where
    Report<E>: Display,
{
    options.prepare().map_err(as_usage)?;
    let (Reporting { json, out }, farewell) = (options.reporting(), options.farewell());
    let out = out.as_deref().map(Output::create).transpose();
    let out = out.map_err(|error| exit::usage(format!("--out: {error:#}")))?;
    let report = with_bar(|progress| Report::of(options, &program()?, progress))?;
    if let Some(out) = &out {
        report.write(out)?;
    }
    E::finish(&report)?;
    print(json, &report)?;
    if let Some(words) = farewell.filter(|_| !json) {
        text::say(words);
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with options is bad usage, unless this machine is what is wrong.
fn as_usage(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Unsupported>() {
        return error;
    }
    exit::usage(format!("{error:#}"))
}

impl Verify {
    fn run(self) -> Result<ExitCode> {
        let Verify { seconds, operations, threads, seed, without, torture, json } = self;
        let report = verify::run(&verify::Options { seconds, operations, threads, seed, without, torture })?;
        print(json, &report)?;
        Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }
}

fn print<R: Serialize + Display>(json: bool, report: &R) -> Result<()> {
    if json {
        return text::print_json(report);
    }
    text::print(&format!("{}\n", report.to_string().trim_end()))
}

/// This executable as its own worker.
fn program() -> Result<Program> {
    let path = std::env::current_exe().context("cannot find the path of this executable")?;
    Ok(Program { path, arguments: vec!["bench".into(), "worker".into()], library: library::find()? })
}

/// Shows on a bar how far `work` is.
fn with_bar<T>(work: impl FnOnce(&mut dyn FnMut(Advance<'_>)) -> Result<T>) -> Result<T> {
    let shown = bar::bar(0, false);
    let result = work(&mut |advance| {
        shown.set_length(advance.total);
        shown.set_position(advance.done);
        shown.set_message(advance.what.to_owned());
    });
    shown.finish_and_clear();
    result
}

fn count(most: usize) -> impl clap::builder::TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..=most as u64)
}

/// A size of memory to fill: from a page to half a terabyte, which no machine of ours has and none overflows at.
fn region(text: &str) -> Result<usize, String> {
    let range = memfold_sys::PAGE_SIZE as u64..=1 << 39;
    match parse_size(text) {
        Some(bytes) if range.contains(&bytes) => Ok(bytes as usize),
        Some(_) => Err("it must lie between 4K and 512G".into()),
        None => Err("a size such as 64M or 1G is needed".into()),
    }
}

/// A time from 10 milliseconds to 30 days, in milliseconds.
fn millis(text: &str) -> Result<u64, String> {
    const MS: u64 = 1_000_000;
    match parse_duration(text) {
        Some(ns) if (10 * MS..=30 * 86_400_000 * MS).contains(&ns) => Ok(ns / MS),
        Some(_) => Err("it must lie between 10ms and 30d".into()),
        None => Err("a time such as 500ms, 10s or 5m is needed".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| *share > 0.0 && *share <= 100.0)
        .ok_or_else(|| "a share above 0 and up to 100 is needed".into())
}
