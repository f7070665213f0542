//! `memfold record`: a trace of the pages that a program touches.

use crate::directory::open_emptied;
use crate::doctor::{probe, verdict};
use crate::run::launch;
use crate::run::program::{self, Absent};
use crate::run::recording::{self, Wish};
use crate::{bar, exit, library, options, text};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use memfold_sim::format::{Request, Sink};
use memfold_tracer::{End, Mode, Unsupported};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  memfold record --out sort.mft -- sort big.txt              which pages in each tenth of a second
  memfold record --interval 10ms --out redis.mft -- redis-server
  memfold record --exact --requests 1000000 --out ls.mft -- ls -lR /usr
  memfold record --source ptrace --out busybox.mft -- busybox sort big.txt      a static program
  memfold sim --trace sort.mft --policy lru,clock --curve 30

The program's output and input are its own. What is seen:
  probe   every thread and system call, in the heap and in private mappings of 1 MiB and more
  ptrace  all private memory but stacks; one thread, and nothing of what the kernel touches in system calls
Not seen are files, shared memory, and programs that this one starts.
Exit codes: the program's, or 2 bad usage, 3 not supported here.";

/// How touches are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Source {
    /// By the pager: pages that it sets aside come back when they are touched.
    Probe,
    /// By a tracer that takes the pages' permissions away.
    Ptrace,
}

/// Record which pages a program touches into a trace for the simulator.
///
/// Its pages are taken out of view once an interval, and come back when they are touched: each page costs a fault an interval.
/// With --exact each access costs four stops of the program, some ten microseconds. The end says what it came to.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the trace goes, in memfold's own format.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How often the reference bits of all pages are read and cleared: a page has one request an interval at most.
    #[arg(
        long, value_name = "TIME", default_value = "100ms",
        value_parser = options::time_in(Duration::from_millis(1)..=Duration::from_secs(3600),
            "a time from 1ms to 1h, such as 100ms, is needed")
    )]
    interval: Duration,
    /// How touches are seen [default: probe, or ptrace where the program cannot be folded].
    #[arg(long, value_name = "SOURCE", hide_possible_values = true, conflicts_with = "exact")]
    source: Option<Source>,
    /// Record every access, instruction by instruction, by a tracer.
    #[arg(long, conflicts_with = "interval")]
    exact: bool,
    /// Let the program go on alone after so many requests.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    requests: u64,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The trace in the making.
struct Trace {
    sink: Sink<BufWriter<std::fs::File>>,
    pages: HashSet<u64>,
}

impl Trace {
    fn push(&mut self, request: Request) -> std::io::Result<()> {
        self.pages.insert(request.object);
        self.sink.push(request)
    }
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for a file that cannot be written or a program that cannot be started, 3 where programs cannot be recorded.
pub fn run(args: Args) -> Result<ExitCode> {
    let program = program::find(&args.command[0], std::env::var_os("PATH").as_deref())
        .map_err(|absent| not_there(&args.command[0], absent))?;
    let source = source(&args, &program)?;
    let file = open_emptied(&args.out)
        .map_err(|error| exit::usage(format!("--out {}: {error}", args.out.display())))?;
    let mut trace = Trace { sink: Sink::native(BufWriter::new(file))?, pages: HashSet::new() };
    let progress = bar::bar(0, false);
    let recorded = match source {
        Source::Probe => by_probing(&args, &program, &mut trace, &progress),
        Source::Ptrace => by_tracing(&args, &mut trace, &progress),
    };
    progress.finish_and_clear();
    let (code, summary) = recorded.map_err(|error| match error.downcast_ref::<Unsupported>() {
        Some(_) => exit::unsupported(format!("{error:#}")),
        None => error.context(format!("while recording {}", args.command[0].to_string_lossy())),
    })?;
    trace.sink.finish()?.flush()?;
    text::say(summary);
    Ok(ExitCode::from(code))
}

/// The source that was asked for, or the one that sees most here.
fn source(args: &Args, program: &Path) -> Result<Source> {
    if args.exact || args.source == Some(Source::Ptrace) {
        return Ok(Source::Ptrace);
    }
    let obstacle = if launch::pager_off(false) {
        Some("MEMFOLD_PAGER turns the pager off".to_owned())
    } else {
        program::obstacle(program, &library::find()?).or_else(|| verdict::hindrance(&probe::gather()))
    };
    match (obstacle, args.source) {
        (None, _) => Ok(Source::Probe),
        (Some(why), Some(_)) => Err(exit::unsupported(format!(
            "{} cannot be recorded by the pager: {why}; --source ptrace can do without it",
            program.display()
        ))),
        (Some(why), None) => {
            text::say(format_args!("recording {} by ptrace, one thread of it: {why}", program.display()));
            Ok(Source::Ptrace)
        }
    }
}

fn by_probing(
    args: &Args,
    program: &Path,
    trace: &mut Trace,
    progress: &ProgressBar,
) -> Result<(u8, String)> {
    let dir = args.out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wish = Wish { file: program, command: &args.command, every: args.interval, most: args.requests, dir };
    let show = |requests| progress.set_message(format!("{} requests", text::count(requests)));
    let recorded = recording::record(&wish, show, |time, object| {
        trace.push(Request { time, object }).context("cannot write the trace")
    })?;
    let end = recorded.alone.as_ref().map(|why| format!("; the program went on alone: {why}"));
    let summary = format!(
        "{} in {}: {} touches waited {} in all{}",
        size(recorded.requests, trace),
        text::nanos(recorded.time.as_nanos() as u64),
        text::count(recorded.touches),
        text::nanos(recorded.waited.as_nanos() as u64),
        end.unwrap_or_default(),
    );
    Ok((recorded.ended.end.code(), summary))
}

fn by_tracing(args: &Args, trace: &mut Trace, progress: &ProgressBar) -> Result<(u8, String)> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let mode = if args.exact { Mode::Exact } else { Mode::Bits(args.interval) };
    let recorded = memfold_tracer::record(command, mode, args.requests, |request| {
        let known = trace.pages.len();
        trace.push(request)?;
        if trace.pages.len() != known {
            progress.set_message(format!("{} pages", trace.pages.len()));
        }
        Ok(())
    })?;
    let end = match recorded.end {
        End::Program => "",
        End::Thread => "; it ends where the program started a second thread",
        End::Limit => "; the program went on alone: the trace is as long as it may be",
    };
    let time = recorded.time.as_nanos() as u64;
    let summary = format!(
        "{} in {}, {} a request, {} stops{end}",
        size(recorded.requests, trace),
        text::nanos(time),
        text::nanos(time / recorded.requests.max(1)),
        text::count(recorded.stops),
    );
    Ok((recorded.code, summary))
}

fn size(requests: u64, trace: &Trace) -> String {
    format!("{} requests of {} pages", text::count(requests), text::count(trace.pages.len() as u64))
}

fn not_there(name: &OsString, absent: Absent) -> anyhow::Error {
    let name = name.to_string_lossy();
    match absent {
        Absent::NotFound => exit::usage(format!("{name}: there is no such program; nothing was recorded")),
        Absent::NotExecutable(why) => exit::usage(format!("{name} cannot be executed: {why}")),
    }
}
