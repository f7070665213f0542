//! `memfold attach`: fold a process that runs already.

use crate::complete;
use crate::options::{self, Named, PagerOptions};
use crate::run::launch;
use crate::target::Target;
use crate::{agent, process, runtime, text};
use anyhow::bail;
use clap_complete::engine::ArgValueCompleter;
use memfold_attach::{Error, Image};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  sudo memfold attach 4711                   fold what process 4711 does not use
  sudo memfold attach --now redis-server     the one process of that name, within two seconds
  sudo memfold attach --dry-run postgres     whether it could be done, and why not
  sudo memfold attach --all --cold-age 1m node
  memfold stat 4711                          what is saved; `ctl`, `top` and `why` as ever
  sudo memfold detach 4711                   bring everything back, and leave no trace

One thread of the process is stopped for a moment, less than 5 ms. Nothing is written to its
files or its standard error. docs/attach.md says what becomes of its forks, and what is refused.

Exit codes: 0 done, 1 failed or refused, 2 bad usage.";

/// Fold a process that runs already.
///
/// It is not started anew and not changed: it gets the pager as three threads of their own, and keeps its allocator.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The process, by its number, or by its name if one process has it.
    #[arg(value_name = "PID|NAME", add = ArgValueCompleter::new(complete::processes))]
    target: Target,
    /// Every process of that name.
    #[arg(long)]
    all: bool,
    /// Say whether it could be attached to, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    settings: PagerOptions,
    /// Fold what is not in use at once, whatever CPU that takes: --cold-age 1s --recompress-age 1s --max-cpu 100.
    #[arg(long)]
    now: bool,
    /// What is evicted: by age, or what a page daemon says to keep --resident-limit [default: age] [env: MEMFOLD_POLICY].
    #[arg(long, value_name = "NAME", value_parser = launch::known_policy, hide_short_help = true)]
    policy: Option<String>,
    /// Keep the process within its share of the budget of `memfold daemon`, while one listens at SOCKET
    /// [default: the socket of `memfold daemon`] [env: MEMFOLD_BUDGET_OF].
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, hide_short_help = true)]
    daemon: Option<Option<PathBuf>>,
    /// Overwrite the pager's copies at once when pages come back or are given up, not within a second [env: MEMFOLD_WIPE=on].
    #[arg(long, hide_short_help = true)]
    wipe: bool,
    /// Print nothing of memfold's own.
    #[arg(long)]
    quiet: bool,
}

/// Attaches.
///
/// # Errors
/// There is no such process, or several; it is refused, and the error says why.
pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if args.now {
        args.settings.hurry();
    }
    let meant = meant(&args.target, args.all)?;
    let image = agent::find()?;
    let mut failed = None;
    for pid in meant {
        if let Err(error) = one(&args, &image, pid) {
            if let Some(before) = failed.replace(error) {
                text::say(format_args!("{before:#}"));
            }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn one(args: &Args, image: &Image, pid: u32) -> anyhow::Result<()> {
    let target = memfold_attach::Target::new(pid);
    let name = process::name(pid);
    if args.dry_run {
        target.check()?;
        return text::print(&format!("{name} (process {pid}) can be attached to\n"));
    }
    let daemon = args.daemon.as_ref().map(|given| runtime::socket(given.as_deref())).transpose()?;
    let choices = choices(&args.settings, args.policy.as_deref(), daemon.as_deref(), args.wipe);
    let stop = crate::attach::fold(pid, image, &choices)?;
    if !args.quiet {
        let stopped = text::nanos(stop.0.as_nanos() as u64);
        text::say(format_args!(
            "{name} (process {pid}) is folded from now on; one thread of it was stopped for {stopped} (`memfold stat {pid}` shows what is saved)"
        ));
    }
    Ok(())
}

/// What the agent is told: what was given, else what the environment says, but for what is of the allocator or of a start.
pub(super) fn choices(
    settings: &PagerOptions,
    policy: Option<&str>,
    daemon: Option<&Path>,
    wipe: bool,
) -> Vec<(String, String)> {
    let given = |named: Named| match named {
        options::POLICY => policy.map(str::to_owned),
        options::DAEMON => daemon.map(|socket| socket.display().to_string()),
        options::WIPE => wipe.then(|| "on".to_owned()),
        _ => {
            let setting = settings.given().find(|(setting, _)| setting.variable() == named.variable);
            setting.map(|(_, text)| text.to_owned())
        }
    };
    let told = options::settings().chain([options::POLICY, options::DAEMON, options::WIPE]);
    let told = told.filter_map(|named| {
        let text = given(named).or_else(|| std::env::var(named.variable).ok())?;
        Some((named.variable.to_owned(), text))
    });
    told.collect()
}

/// The processes that are meant, folded or not.
pub(super) fn meant(target: &Target, all: bool) -> anyhow::Result<Vec<u32>> {
    if let Target::Pid(pid) = target {
        return Ok(vec![*pid]);
    }
    let found: Vec<u32> =
        process::all().into_iter().filter(|pid| target.matches(*pid) && *pid != std::process::id()).collect();
    match found.len() {
        0 => bail!("no process has that name"),
        1 => Ok(found),
        _ if all => Ok(found),
        several => {
            let pids: Vec<_> = found.iter().map(u32::to_string).collect();
            bail!("{several} processes have that name: {}; give the number of one, or --all", pids.join(", "))
        }
    }
}

/// Whether the error says that there is nothing to do.
pub(super) fn is_done(error: &Error) -> bool {
    matches!(error, Error::NotAttached(_))
}
