//! `memfold heap`: which code of a running program holds how much memory, and how much of that nobody touches.

use crate::answer;
use crate::bar::bar;
use crate::complete;
use crate::directory::open_emptied;
use crate::options;
use crate::pages::Found;
use crate::process;
use crate::target::Target;
use crate::text::{self, bytes, nanos};
use anyhow::{bail, Context};
use clap_complete::engine::ArgValueCompleter;
use memfold_inspect::Mailbox;
use memfold_pager::config::Setting;
use memfold_pager::control::{Command, Mode};
use memfold_pager::samples::PREFIX;
use memfold_profile::{flame, folded, pprof, By, Bytes, Names, Profile};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

const AFTER_HELP: &str = "\
Examples:
  memfold heap redis-server                  sample for ten seconds, then show who holds what
  memfold heap 4711 --for 5m --svg heap.svg  a flame graph of what was allocated within five minutes
  memfold heap 4711 --start                  sample from now on; `memfold heap 4711` shows it, now or in an hour
  memfold heap 4711 --by cold                the code first that holds the memory that nobody touches
  memfold heap 4711 --pprof heap.pb.gz && go tool pprof -http :8000 heap.pb.gz
  memfold heap 4711 --stop                   sample no longer
  memfold run --heap-sample 512K -- CMD      sample from the start of a program on

Only what is allocated while the program is sampled is seen. One allocation in 512 KiB is, and stands for the others; nothing is, and
nothing is spent on it, before somebody asks. A program is sampled until --stop once --start or `run --heap-sample` began it, and
else for as long as this command runs; Ctrl-C shows what there is so far.

LIVE is what is allocated and not freed. COLD, of that, is folded, set aside, or in memory and not touched for a cold age.
WHERE are the functions that asked for it, the innermost first. Names come from symbols, and from debug files where they are installed.
In a flame graph a function is as wide as what it holds, red where that is in use and blue where nobody touches it.

Exit codes: 0 done, 1 failed (no such process, not folded, no answer), 2 bad usage.";

/// Show which code of a program holds how much memory, and how much of it nobody touches.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The process, or the name of the only folded one that is called so.
    #[arg(value_name = "PID|NAME", add = ArgValueCompleter::new(complete::processes))]
    target: Target,
    /// How long to sample a program that is not sampled yet.
    #[arg(
        long = "for", value_name = "TIME", default_value = "10s",
        value_parser = options::time_in(Duration::from_nanos(1)..=Duration::MAX,
            "a time above 0 is needed, such as 10s or 5m")
    )]
    time: Duration,
    /// Sample from now on, and end.
    #[arg(long, conflicts_with_all = ["stop", "svg", "pprof", "folded", "json"])]
    start: bool,
    /// Sample no longer, and forget what was sampled.
    #[arg(long, conflicts_with_all = ["svg", "pprof", "folded", "json"])]
    stop: bool,
    /// What comes first, and how wide a function is in the flame graph.
    #[arg(long, value_enum, default_value = "live")]
    by: Measure,
    /// Write a flame graph.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a file for pprof.
    #[arg(long, value_name = "FILE")]
    pprof: Option<PathBuf>,
    /// Write a line for each stack: its functions, then bytes.
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    /// Show so many places.
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Show so many functions of each.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..))]
    depth: u8,
    /// Bytes that are allocated between two samples, in the mean.
    #[arg(long, value_name = "SIZE", default_value = "512K", value_parser = mean)]
    mean: u64,
    /// Print JSON, with every stack.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Measure {
    Live,
    Cold,
    Folded,
}

impl Measure {
    fn by(self) -> By {
        match self {
            Measure::Live => By::Live,
            Measure::Cold => By::Cold,
            Measure::Folded => By::Folded,
        }
    }
}

/// Set when the user has waited long enough.
static STOP: AtomicBool = AtomicBool::new(false);

/// How long the process may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

fn mean(text: &str) -> Result<u64, String> {
    match Setting::HeapSample.parse(text) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err("a size from 1 byte to 1T is needed, such as 512K".into()),
    }
}

/// Samples where that is needed, and shows what came of it.
///
/// # Errors
/// There is no such process, it is not folded, it does not answer, or a file cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = args.target.one()?;
    match found.page.mode {
        Mode::Off => bail!("process {} is not folded, and cannot be asked: {}", found.pid, found.page.reason),
        Mode::Idle => bail!(
            "process {} is not folded yet, and cannot be asked: it manages {} and folding begins at {}",
            found.pid,
            bytes(found.page.sizes.managed_bytes),
            bytes(found.page.settings[Setting::StartAt as usize])
        ),
        Mode::Embedded => {}
    }
    let now = found.page.settings[Setting::HeapSample as usize];
    if args.stop {
        sample(&found, 0)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.start {
        sample(&found, args.mean)?;
        text::note(&format!(
            "process {} is sampled; `memfold heap {0}` shows what it allocates from now on\n",
            found.pid
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let taken = match now {
        0 => sample_for_a_while(&found, &args)?,
        _ => answer::ask(&found.file, found.pid, Command::Samples, PREFIX, PATIENCE)?,
    };
    let mut names = Names::of(found.pid)?;
    let profile = Profile::read(&taken, &mut names)?;
    write_files(&found, &args, &profile, &names)?;
    if args.json {
        text::print_json(&as_json(&found, &profile))?;
    } else {
        text::print(&as_text(&found, &args, &profile))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn sample(found: &Found, mean: u64) -> anyhow::Result<()> {
    let page = found.file.open().context("cannot open the control page")?;
    Mailbox::open(page, found.pid)?
        .ask(Command::Set, Setting::HeapSample as u64, mean, "", PATIENCE)
        .context("sampling could not be changed")
}

/// Samples a program that is not sampled, and leaves it so.
fn sample_for_a_while(found: &Found, args: &Args) -> anyhow::Result<Vec<u8>> {
    sample(found, args.mean)?;
    ctrlc::set_handler(|| STOP.store(true, Relaxed)).context("cannot watch for Ctrl-C")?;
    let bar = bar(args.time.as_millis() as u64, false);
    bar.set_message(format!("sampling process {}", found.pid));
    let began = std::time::Instant::now();
    while began.elapsed() < args.time && !STOP.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(50).min(args.time));
        bar.set_position(began.elapsed().as_millis() as u64);
    }
    bar.finish_and_clear();
    let taken = answer::ask(&found.file, found.pid, Command::Samples, PREFIX, PATIENCE);
    // Whatever came of it, the program is as it was before.
    sample(found, 0)?;
    taken
}

fn title(found: &Found, sum: &Bytes) -> String {
    format!(
        "{} ({}): {} live, {} of it cold, {} folded",
        process::name(found.pid),
        found.pid,
        whole(sum.live),
        whole(sum.cold),
        whole(sum.folded)
    )
}

fn whole(found: f64) -> String {
    bytes(found.round() as u64)
}

fn write_files(found: &Found, args: &Args, profile: &Profile, names: &Names) -> anyhow::Result<()> {
    if let Some(path) = &args.svg {
        write(path, &flame::svg(profile, args.by.by(), &title(found, &profile.sum()))?)?;
    }
    if let Some(path) = &args.pprof {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        write(path, &pprof::file(profile, names, now.as_nanos() as u64)?)?;
    }
    if let Some(path) = &args.folded {
        let mut lines = folded::lines(profile, args.by.by()).join("\n");
        lines.push('\n');
        write(path, lines.as_bytes())?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = open_emptied(path).and_then(|mut file| file.write_all(bytes));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn as_text(found: &Found, args: &Args, profile: &Profile) -> String {
    let sum = profile.sum();
    let mut out = format!(
        "{}\n{} samples within {}, one in {}{}\n\n",
        title(found, &sum),
        text::count(profile.samples as u64),
        nanos(profile.sampled_ns),
        bytes(profile.mean),
        match profile.missed {
            0 => String::new(),
            missed => format!("; {} more had no room: choose a larger --mean", text::count(missed)),
        }
    );
    let row = |live: &str, cold: &str, part: &str, folded: &str, place: &str| {
        format!("{live:>8}  {cold:>8}  {part:>5}  {folded:>8}  {place}\n")
    };
    out.push_str(&row("LIVE", "COLD", "COLD%", "FOLDED", "WHERE"));
    let places = profile.places(usize::from(args.depth), args.by.by());
    for (names, held) in places.iter().take(args.top) {
        let part = format!("{:.0} %", 100.0 * held.coldness());
        let place = names.join(" < ");
        out.push_str(&row(&whole(held.live), &whole(held.cold), &part, &whole(held.folded), &place));
    }
    let rest = places.len().saturating_sub(args.top);
    if rest > 0 {
        let mut others = Bytes::default();
        places[args.top..].iter().for_each(|(_, held)| others += *held);
        out.push_str(&format!("and {rest} more places with {}\n", whole(others.live)));
    }
    out
}

fn as_json(found: &Found, profile: &Profile) -> serde_json::Value {
    let stacks = profile.stacks.iter().map(|stack| {
        let mut row = json!(stack.bytes);
        row["calls"] = stack
            .frames()
            .map(|frame| json!({ "function": frame.function, "file": frame.file, "line": frame.line }))
            .collect();
        row
    });
    let mut all = json!(profile.sum());
    all["pid"] = json!(found.pid);
    all["name"] = json!(process::name(found.pid));
    all["mean_bytes"] = json!(profile.mean);
    all["sampled_ns"] = json!(profile.sampled_ns);
    all["samples"] = json!(profile.samples);
    all["missed"] = json!(profile.missed);
    all["stacks"] = stacks.collect();
    all
}
