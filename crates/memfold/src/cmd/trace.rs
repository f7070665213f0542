//! `memfold trace`: what is in a trace, other formats of it, and made-up ones.

use crate::trace_file::{bad, TraceFile};
use crate::{bar, exit, text};
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::ValueEnum;
use memfold_sim::format::{Request, Sink};
use memfold_sim::generate::{Generator, Shape};
use memfold_sim::TraceError;
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold trace info io.oracleGeneral.bin.zst
  memfold trace convert io.csv --csv-column 3 --csv-header io.mft.zst
  memfold trace convert io.mft io.csv
  memfold trace convert io.mft io.oracleGeneral.bin          for libCacheSim's cachesim
  memfold trace generate zipf --pages 1000000 --requests 10000000 zipf.mft

The output's format goes by its name: .csv is text, .oracleGeneral or .oracleGeneral.bin libCacheSim's binary
format, anything else memfold's own; .zst behind it compresses.
Exit codes: 0 done, 1 failed, 2 bad usage.";

/// Look at a trace, convert it or make one up.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Info(Info),
    Convert(Convert),
    Generate(Generate),
}

/// Say what is in a trace: it is read to its end, and any damage is named with its place.
#[derive(clap::Args)]
struct Info {
    #[command(flatten)]
    trace: TraceFile,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Write a trace in another format.
#[derive(clap::Args)]
struct Convert {
    #[command(flatten)]
    trace: TraceFile,
    /// Where to.
    #[arg(value_name = "OUTPUT")]
    to: PathBuf,
}

/// Make a trace up; equal options give equal traces.
#[derive(clap::Args)]
struct Generate {
    /// Its shape.
    #[arg(value_enum)]
    shape: Kind,
    /// Where to.
    #[arg(value_name = "OUTPUT")]
    to: PathBuf,
    /// Pages.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = RangedU64ValueParser::<u64>::new().range(8..=1 << 31))]
    pages: u64,
    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 40))]
    requests: u64,
    /// Skew of a zipf trace: page n is requested as often as 1/n^SKEW says.
    #[arg(long, default_value_t = 1.0, value_parser = skew)]
    skew: f64,
    /// What all random choices are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A few pages often, many seldom.
    Zipf,
    /// Every page once, in order, again and again.
    Scan,
    /// A loop over a quarter of the pages, and a tenth of the requests at random.
    Loop,
    /// Eight phases, each with pages of its own.
    Phases,
}

/// What `info` says.
#[derive(Serialize)]
struct Facts {
    requests: u64,
    pages: u64,
    /// Requests of a page that was requested before.
    repeated: u64,
    first_time: u64,
    last_time: u64,
    least_object: u64,
    greatest_object: u64,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for a trace that cannot be read.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.what {
        What::Info(args) => args.run()?,
        What::Convert(args) => args.run()?,
        What::Generate(args) => args.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Info {
    fn run(self) -> Result<()> {
        let TraceFile { path, options } = &self.trace;
        let mut seen = HashSet::new();
        let mut facts: Option<Facts> = None;
        for request in options.open(path)? {
            let Request { time, object } = request.map_err(|error| bad(path, error))?;
            let facts = facts.get_or_insert(Facts {
                requests: 0,
                pages: 0,
                repeated: 0,
                first_time: time,
                last_time: time,
                least_object: object,
                greatest_object: object,
            });
            facts.requests += 1;
            facts.pages += u64::from(seen.insert(object));
            facts.last_time = time;
            facts.least_object = facts.least_object.min(object);
            facts.greatest_object = facts.greatest_object.max(object);
        }
        let mut facts = facts.ok_or_else(|| bad(path, TraceError::Empty))?;
        facts.repeated = facts.requests - facts.pages;
        if self.json {
            return text::print_json(&facts);
        }
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        text::print(&text::table(&[
            row("requests", text::count(facts.requests)),
            row("different pages", text::count(facts.pages)),
            row("requested again", format!("{:.1} %", text::percent(facts.repeated, facts.requests))),
            row("times", format!("{} to {}", facts.first_time, facts.last_time)),
            row("objects", format!("{} to {}", facts.least_object, facts.greatest_object)),
        ]))
    }
}

impl Convert {
    fn run(self) -> Result<()> {
        let TraceFile { path, options } = &self.trace;
        let requests = options.open(path)?;
        write(&self.to, requests.map(|request| request.map_err(|error| bad(path, error))), 0)
    }
}

impl Generate {
    fn run(self) -> Result<()> {
        let shape = match self.shape {
            Kind::Zipf => Shape::Zipf { skew: self.skew },
            Kind::Scan => Shape::Scan,
            Kind::Loop => Shape::Loop,
            Kind::Phases => Shape::Phases,
        };
        let objects = Generator::new(shape, self.pages, self.requests, self.seed);
        let request = |(time, object)| Ok(Request { time, object });
        write(&self.to, (0..).zip(objects).map(request), self.requests)
    }
}

/// A skew of a Zipf distribution.
pub fn skew(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|skew| (0.0..=10.0).contains(skew))
        .ok_or_else(|| "a number from 0 to 10 is needed".into())
}

/// Writes a trace beside `to`, which it replaces when all of it is there.
fn write(to: &Path, requests: impl Iterator<Item = Result<Request>>, total: u64) -> Result<()> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As for any file that a program makes: what the umask leaves of it.
    let permissions = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new()
        .permissions(permissions)
        .tempfile_in(folder)
        .map_err(|error| exit::usage(format!("cannot write to {}: {error}", folder.display())))?;
    let (file, temporary) = file.into_parts();
    fill(to, file, requests, total).with_context(|| format!("while writing {}", to.display()))?;
    temporary.persist(to).with_context(|| format!("cannot write {}", to.display()))
}

fn fill(name: &Path, file: File, requests: impl Iterator<Item = Result<Request>>, total: u64) -> Result<()> {
    let name = name.to_string_lossy().to_ascii_lowercase();
    let plain = name.trim_end_matches(".zst");
    let file = BufWriter::with_capacity(1 << 18, file);
    if plain.len() < name.len() {
        let packed = pour(zstd::stream::write::Encoder::new(file, 3)?, plain, requests, total)?;
        packed.finish()?.flush()?;
    } else {
        pour(file, plain, requests, total)?.flush()?;
    }
    Ok(())
}

/// Writes a trace in the format that the end of `name`, in small letters, tells.
fn pour<W: Write>(
    to: W,
    name: &str,
    requests: impl Iterator<Item = Result<Request>>,
    total: u64,
) -> Result<W> {
    let oracle_general = [".oraclegeneral", ".oraclegeneral.bin"].iter().any(|end| name.ends_with(end));
    let mut sink = match name.ends_with(".csv") {
        true => Sink::csv(to)?,
        false if oracle_general => Sink::oracle_general(to),
        false => Sink::native(to)?,
    };
    let progress = bar::bar(total, false);
    for (number, request) in requests.enumerate() {
        sink.push(request?)?;
        if number % (1 << 16) == 0 {
            progress.set_position(number as u64);
        }
    }
    progress.finish_and_clear();
    Ok(sink.finish()?)
}
