//! `memfold detach`: take the agent out of a process again.

use super::attach;
use crate::complete;
use crate::target::Target;
use crate::{agent, process, text};
use clap_complete::engine::ArgValueCompleter;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  sudo memfold detach 4711
  sudo memfold detach --all node

Everything that is folded comes back before, which takes some 10 us for each page of it, and the
memory for it must be there. Then nothing of memfold's is left in the process: no thread, no open
file, no mapping. A program that `memfold run` has started is stopped being folded by `ctl PID stop`.

Exit codes: 0 done, 1 failed (nothing was attached to it), 2 bad usage.";

/// Bring everything back and leave a process that was attached to.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The process, by its number, or by its name if one process has it.
    #[arg(value_name = "PID|NAME", add = ArgValueCompleter::new(complete::processes))]
    target: Target,
    /// Every process of that name that was attached to.
    #[arg(long)]
    all: bool,
    /// Print nothing of memfold's own.
    #[arg(long)]
    quiet: bool,
}

/// Detaches.
///
/// # Errors
/// Nothing was attached to the process, or it cannot be stopped.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let meant = attach::meant(&args.target, args.all)?;
    let image = agent::find()?;
    for pid in meant {
        match memfold_attach::detach(&memfold_attach::Target::new(pid), &image) {
            Ok(stop) if !args.quiet => text::say(format_args!(
                "{} (process {pid}) is as it was; one thread of it was stopped for {}",
                process::name(pid),
                text::nanos(stop.0.as_nanos() as u64)
            )),
            Ok(_) => {}
            Err(error) if args.all && attach::is_done(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
