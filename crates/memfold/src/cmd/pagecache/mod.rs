//! `memfold pagecache`: who gets the page cache, at whose cost, and what helps.
//!
//! What it is not: the benchmark, which is the crate `pagecache`. Here are its options and the printing of its results.

mod corun;
mod run;

use crate::{bar, exit, text};
use ::memfold_pagecache::analyze;
use ::memfold_pagecache::folder::Folder;
use ::memfold_pagecache::run::Event;
use ::memfold_pagecache::tenant::Program;
use ::memfold_pagecache::workload::{self, Scale, Workload};
use ::memfold_pagecache::{clean, engine, Interrupted, Refused, Stop, Unsupported};
use ::memfold_pager::config::parse_size;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold pagecache list                              the workloads
  memfold pagecache run steady_reader_d1              one of them, through the cache and past it
  memfold pagecache run --scale 1/16 all              all on a sixteenth of the size: 1 GiB of disk, 3 minutes
  memfold pagecache run -c custom.ini -o results my_workload
  memfold pagecache analyze fairness_results          table, plots and page, made anew
  memfold pagecache corun --victim steady_reader_d1 --neighbor bursty_writer_d32 --scale 1/16
  memfold pagecache clean                             remove the test files

Exit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here, 130 interrupted.";

/// Measure who gains from the page cache and who pays, with the real fio.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Run(run::Args),
    List(List),
    Analyze(Analyze),
    Corun(corun::Args),
    Clean(Clean),
    /// The body of a tenant that fio cannot be.
    #[command(hide = true)]
    Worker {
        /// The job, as JSON.
        job: String,
    },
}

/// List the workloads.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct List {
    #[command(flatten)]
    config: Config,
    /// Print JSON.
    #[arg(long, conflicts_with = "ini")]
    json: bool,
    /// Print the built-in configuration file, to be changed and named with -c.
    #[arg(long)]
    ini: bool,
}

/// Make the table, the plots and the page of earlier results anew.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Analyze {
    /// The directory that was given as -o.
    #[arg(default_value = run::RESULTS)]
    directory: PathBuf,
    /// Print JSON instead of the summary.
    #[arg(long)]
    json: bool,
}

/// Remove the test files, and what killed runs left behind.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Clean {
    /// The directory of the test files.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Where workloads are described.
#[derive(clap::Args)]
struct Config {
    /// The configuration file [default: fairness_configs.ini if it is in the current directory, else the built-in one].
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Where and how large.
#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    config: Config,
    /// The directory of the test files, on the disk that is to be measured.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Shrink files, the cache limit and times (to no less than 5 s): 1/16, or 0.25.
    #[arg(long, value_name = "FRACTION", value_parser = scale, conflicts_with = "quick")]
    scale: Option<Scale>,
    /// A first look: --scale 1/64 --runtime 2.
    #[arg(long)]
    quick: bool,
    /// Seconds of each run, in place of the configuration's.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    runtime: Option<u64>,
    /// Say what is done.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for what cannot be used, 3 for what this machine lacks, 130 after an interruption.
pub fn run(args: Args) -> Result<ExitCode> {
    let outcome = match args.what {
        What::Run(args) => args.run(),
        What::List(args) => args.run(),
        What::Analyze(args) => args.run(),
        What::Corun(args) => args.run(),
        What::Clean(args) => args.run(),
        What::Worker { job } => engine::main(&job),
    };
    coded(outcome)
}

/// Makes the report of `directory` anew, if that holds results of this command.
pub fn report(directory: &Path, json: bool) -> Option<Result<ExitCode>> {
    Folder::open(directory).ok()?;
    Some(coded(Analyze { directory: directory.to_owned(), json }.run()))
}

fn coded(outcome: Result<()>) -> Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS).map_err(|error| {
        if error.is::<Interrupted>() {
            exit::interrupted()
        } else if error.is::<Refused>() {
            exit::usage(format!("{error:#}"))
        } else if error.is::<Unsupported>() {
            exit::unsupported(format!("{error:#}"))
        } else {
            error
        }
    })
}

impl List {
    fn run(self) -> Result<()> {
        if self.ini {
            return text::print(workload::BUILT_IN);
        }
        let workloads = self.config.read()?;
        if self.json {
            return text::print_json(&workloads);
        }
        let head = ["workload", "description", "file size", "block", "pattern", "jobs", "iodepth", "seconds"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(workloads.into_iter().map(|workload| {
            vec![
                workload.name,
                workload.description,
                workload::short_size(workload.file_size),
                workload::short_size(workload.block_size),
                workload.pattern.name().to_owned(),
                workload.numjobs.to_string(),
                workload.iodepth.to_string(),
                workload.runtime.to_string(),
            ]
        }));
        text::print(&text::table(&rows))
    }
}

impl Analyze {
    fn run(self) -> Result<()> {
        let analysis = analyze::write(&self.directory)?;
        if self.json {
            return text::print_json(&analysis);
        }
        text::print(&analysis.to_string())?;
        text::say(format_args!("wrote {}", self.directory.join("report.html").display()));
        Ok(())
    }
}

impl Clean {
    fn run(self) -> Result<()> {
        let gone = clean::clean(&self.dir)?;
        if self.json {
            let files: Vec<_> = gone
                .iter()
                .map(|(name, bytes)| serde_json::json!({ "file": name, "bytes": bytes }))
                .collect();
            return text::print_json(&serde_json::json!({ "removed": files }));
        }
        let lines = gone.iter().map(|(name, bytes)| format!("removed {name} ({})\n", text::bytes(*bytes)));
        let said: String = lines.collect();
        text::print(if said.is_empty() { "there was nothing to remove\n" } else { &said })
    }
}

impl Config {
    fn read(&self) -> Result<Vec<Workload>> {
        let here = PathBuf::from(workload::CONFIG_FILE);
        let file = self.config.clone().or_else(|| here.exists().then_some(here));
        let Some(file) = file else { return Ok(workload::parse(workload::BUILT_IN)?) };
        let name = file.display();
        let text =
            std::fs::read_to_string(&file).map_err(|error| exit::usage(format!("-c {name}: {error}")))?;
        workload::parse(&text).map_err(|mistake| exit::usage(format!("{name}: {mistake}")))
    }

    /// The workloads of these names, in this order; `all` names all of them.
    fn named(&self, names: &[String]) -> Result<Vec<Workload>> {
        let known = self.read()?;
        let mut chosen: Vec<Workload> = Vec::new();
        for name in names {
            let found: Vec<&Workload> =
                known.iter().filter(|one| name == "all" || one.name == *name).collect();
            if found.is_empty() {
                let all: Vec<&str> = known.iter().map(|workload| workload.name.as_str()).collect();
                return Err(exit::usage(format!(
                    "there is no workload {name:?}; there are {}",
                    all.join(", ")
                )));
            }
            for workload in found {
                if !chosen.contains(workload) {
                    chosen.push(workload.clone());
                }
            }
        }
        Ok(chosen)
    }
}

impl Common {
    fn scale(&self) -> Scale {
        match (self.scale, self.quick) {
            (Some(scale), _) => scale,
            (None, true) => Scale { numerator: 1, denominator: 64 },
            (None, false) => Scale::FULL,
        }
    }

    /// A workload as it is to run.
    fn adapted(&self, workload: &Workload) -> Workload {
        let mut workload = workload.scaled(self.scale());
        if let Some(runtime) = self.runtime.or(self.quick.then_some(2)) {
            workload.runtime = runtime;
        }
        workload
    }
}

/// This executable as the engine.
fn program() -> Result<Program> {
    let path = std::env::current_exe().context("cannot find the path of this executable")?;
    Ok(Program { path, arguments: vec!["pagecache".into(), "worker".into()] })
}

/// Does `work`, shows on a bar how far it is, and has Ctrl-C stop it.
fn watched<T>(
    verbose: bool,
    work: impl FnOnce(&Program, &Stop, &mut dyn FnMut(Event<'_>)) -> Result<T>,
) -> Result<T> {
    let stop = Stop::default();
    let wished = stop.clone();
    ctrlc::set_handler(move || wished.wish()).context("cannot watch for Ctrl-C")?;
    let shown = bar::bar(0, false);
    let result = work(&program()?, &stop, &mut |event| match event {
        Event::Advance(advance) => {
            shown.set_length(advance.total);
            shown.set_position(advance.done);
            shown.set_message(advance.what.to_owned());
        }
        Event::Note(note) => shown.suspend(|| text::say(note)),
        Event::Detail(detail) if verbose => shown.suspend(|| text::say(detail)),
        Event::Detail(_) => {}
    });
    shown.finish_and_clear();
    result
}

fn scale(text: &str) -> Result<Scale, String> {
    Scale::parse(text).ok_or_else(|| "a fraction above 0 and up to 1 is needed, such as 1/16 or 0.25".into())
}

/// A size of memory that a program can run in.
fn limit(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 16 << 20;
    match parse_size(text) {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        Some(_) => Err("at least 16M is needed: fio itself takes some".into()),
        None => Err("a size such as 512M or 2G is needed".into()),
    }
}
