//! `memfold record`: a trace of the pages that a program touches.

use crate::{bar, exit, text};
use anyhow::Result;
use pager::config::parse_duration;
use sim::format::Sink;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tracer::{End, Mode, Recorded, Unsupported};

const EXAMPLES: &str = "\
Examples:
  memfold record --out sort.mft -- sort big.txt              which pages in each tenth of a second
  memfold record --interval 10ms --out redis.mft -- redis-server
  memfold record --exact --requests 1000000 --out ls.mft -- ls -lR /usr
  memfold sim --trace sort.mft --policy lru,clock --curve 30

The program's output and input are its own. What is seen: private anonymous memory, the heap included; not stacks, files,
shared memory, what the kernel touches in system calls, and what happens after the start of a second thread.
Exit codes: the program's, or 2 bad usage, 3 not supported here.";

/// Record which pages a program touches into a trace for the simulator.
///
/// The program is traced: its pages are closed, and opened again when they are touched. With --interval each page costs a
/// few stops an interval; with --exact each access costs four, some ten microseconds. The end says what it came to.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the trace goes, in memfold's own format.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How often the reference bits of all pages are read and cleared: a page has one request an interval at most.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    interval: Duration,
    /// Record every access, instruction by instruction.
    #[arg(long, conflicts_with = "interval")]
    exact: bool,
    /// Let the program go on alone after so many requests.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    requests: u64,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for a file that cannot be written or a program that cannot be started, 3 where programs cannot be traced.
pub fn run(args: Args) -> Result<ExitCode> {
    let file = std::fs::File::create(&args.out)
        .map_err(|error| exit::usage(format!("--out {}: {error}", args.out.display())))?;
    let mut sink = Sink::native(BufWriter::new(file))?;
    let mut pages = HashSet::new();
    let (name, rest) = args.command.split_first().expect("clap requires a program");
    let mut command = Command::new(name);
    command.args(rest);
    let mode = if args.exact { Mode::Exact } else { Mode::Bits(args.interval) };
    let progress = bar::bar(0, false);
    let recorded = tracer::record(command, mode, args.requests, |request| {
        if pages.insert(request.object) {
            progress.set_message(format!("{} pages", pages.len()));
        }
        sink.push(request)
    });
    progress.finish_and_clear();
    let recorded = recorded.map_err(|error| match error.downcast_ref::<Unsupported>() {
        Some(_) => exit::unsupported(format!("{error:#}")),
        None => error.context(format!("while recording {}", name.to_string_lossy())),
    })?;
    sink.finish()?.flush()?;
    eprintln!("memfold: {}", summary(&recorded, pages.len()));
    Ok(ExitCode::from(recorded.code))
}

fn summary(recorded: &Recorded, pages: usize) -> String {
    let Recorded { requests, stops, time, end, .. } = *recorded;
    let end = match end {
        End::Program => "",
        End::Thread => "; it ends where the program started a second thread",
        End::Limit => "; the program went on alone",
    };
    let each = time.as_nanos() as u64 / requests.max(1);
    format!(
        "{} requests of {} pages in {}, {} a request, {} stops{end}",
        text::count(requests),
        text::count(pages as u64),
        text::nanos(time.as_nanos() as u64),
        text::nanos(each),
        text::count(stops),
    )
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Some(ns) if (1_000_000..=3_600_000_000_000).contains(&ns) => Ok(Duration::from_nanos(ns)),
        _ => Err("a time from 1ms to 1h, such as 100ms, is needed".into()),
    }
}
