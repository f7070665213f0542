//! `memfold bench`: measure what folding costs and saves, and verify that it loses nothing.
//!
//! What it is not: the experiments, nor their options. Those are in the `bench` crate; here are the printing of their results, and
//! the start of their worker processes, which are this executable with the hidden command `bench worker`.

mod sim;

use crate::run::launch::known_policy;
use crate::{bar, exit, library, text};
use ::memfold_bench::alloc::{self, arena, NotLoaded};
use ::memfold_bench::arguments::{count, EXAMPLES};
use ::memfold_bench::course::Advance;
use ::memfold_bench::experiment::{Experiment, Report};
use ::memfold_bench::output::Output;
use ::memfold_bench::worker::{self, Program};
use ::memfold_bench::{
    ab, fault, fold, overhead, pagedaemon, pauses, programs, sources, verify, workload, Unsupported,
};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure what folding costs and saves.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Fault(Recorded<fault::Options>),
    Fold(Recorded<fold::Options>),
    Alloc(Recorded<alloc::Options>),
    Arena(Recorded<arena::Options>),
    Overhead(Recorded<overhead::Options>),
    Attach(Recorded<pauses::Options>),
    Pager(ab::Options),
    Programs(programs::Options),
    Sources(Recorded<sources::Options>),
    Pagedaemon(pagedaemon::Options),
    Workload(Printed<workload::Options>),
    Sim(sim::Args),
    Verify(Printed<verify::Options>),
    /// The body of a worker process.
    #[command(hide = true)]
    Worker {
        /// The job, as JSON.
        job: String,
    },
}

// What writes its result and its raw runs into a directory, if it is given one. (A doc comment here would be the help of all.)
#[derive(clap::Args)]
struct Recorded<T: clap::Args> {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Also write result.json, manifest.json and the raw runs as CSV into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    options: T,
}

// What prints its result and writes no files.
#[derive(clap::Args)]
struct Printed<T: clap::Args> {
    #[command(flatten)]
    options: T,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs an experiment, a verification, or the body of a worker.
///
/// # Errors
/// What the experiment met; with exit code 3 where this machine lacks what it needs.
pub fn run(args: Args) -> Result<ExitCode> {
    started(args.what).map_err(|error| {
        match (error.downcast_ref::<Unsupported>(), error.downcast_ref::<NotLoaded>()) {
            (Some(_), _) => exit::unsupported(format!("{error:#}")),
            (_, Some(_)) => exit::usage(format!("{error:#}")),
            _ => error,
        }
    })
}

fn started(what: What) -> Result<ExitCode> {
    match what {
        What::Fault(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Fold(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Alloc(Recorded { json, out, options }) => match (options.soak(), options.programs()) {
            (Some(soak), _) => carry_out(soak, json, out.as_deref()),
            (None, Some(programs)) => carry_out(programs, json, out.as_deref()),
            (None, None) => carry_out(options, json, out.as_deref()),
        },
        What::Arena(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Overhead(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Attach(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Sources(Recorded { json, out, options }) => carry_out(options, json, out.as_deref()),
        What::Pager(options) => pager(options),
        What::Programs(options) => {
            let (json, out) = (options.json, options.out.clone());
            let code = carry_out(options, json, out.as_deref())?;
            if let Some(out) = out.filter(|_| !json) {
                text::say(format_args!("tables, plots and report.html are in {}", out.display()));
            }
            Ok(code)
        }
        What::Pagedaemon(options) => {
            options.policies.iter().try_for_each(|text| known_policies(text))?;
            let (json, out) = (options.json, options.out.clone());
            carry_out(options, json, Some(&out))
        }
        What::Workload(args) => {
            print(args.json, &workload::run(&args.options)?)?;
            Ok(ExitCode::SUCCESS)
        }
        What::Sim(args) => args.run(),
        What::Verify(args) => {
            let report = verify::run(&args.options)?;
            print(args.json, &report)?;
            Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
        }
        What::Worker { job } => worker::main(&job).map(|()| ExitCode::SUCCESS),
    }
}

/// Carries an experiment out.
fn carry_out<E: Experiment>(mut options: E, json: bool, out: Option<&Path>) -> Result<ExitCode>
where
    Report<E>: Display,
{
    options.prepare().map_err(as_usage)?;
    let out = out.map(Output::create).transpose();
    let out = out.map_err(|error| exit::usage(format!("--out: {error:#}")))?;
    let report = with_bar(|progress| Report::of(options, &program()?, progress))?;
    if let Some(out) = &out {
        report.write(out)?;
    }
    E::finish(&report)?;
    print(json, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs workloads with and without the pager, or goes on with what is there.
fn pager(mut options: ab::Options) -> Result<ExitCode> {
    options.prepare().map_err(as_usage)?;
    let folder = ab::begin(&options.out, &options);
    let folder = folder.map_err(|error| exit::usage(format!("--out: {error:#}")))?;
    let results = with_bar(|progress| ab::run(&folder, &program()?, progress))?;
    print(options.json, &results)?;
    if !options.json {
        text::say(format_args!("tables, plots and report.html are in {}", options.out.display()));
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

/// Whether `--policies` names policies that have passes to compare.
fn known_policies(text: &str) -> Result<()> {
    pagedaemon::split(text).iter().try_for_each(|policy| {
        let why = match known_policy(policy) {
            Ok(name) if name == "age" => "it has no passes to compare".into(),
            Ok(_) => return Ok(()),
            Err(why) => why,
        };
        Err(exit::usage(format!("invalid value '{policy}' for --policies: {why}")))
    })
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
