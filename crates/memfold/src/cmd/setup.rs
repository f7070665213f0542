//! `memfold setup`: once, as root, so that ordinary users may fold their own programs.

use crate::setup::{machine, plan, plan::Change};
use crate::text;
use anyhow::bail;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  sudo memfold setup --user ann     ann may fold her programs from her next log-in on
  memfold setup --dry-run           what would be changed
  sudo memfold setup --remove       everything as it was

Exit codes: 0 done, 1 failed (not root, say), 2 bad usage.";

/// Let ordinary users fold their own programs (once, as root).
///
/// Makes the group `memfold`, lets it open /dev/userfaultfd now (and, by a udev rule, after every start), permits it
/// real-time priority, and lets it attach to its own programs. Prints every change. Doing it again changes nothing.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Undo everything.
    #[arg(long)]
    remove: bool,
    /// Put this user into the group.
    #[arg(long, value_name = "NAME", conflicts_with = "remove", value_parser = existing_user)]
    user: Option<String>,
    /// Print what would be changed, and change nothing. Needs no root.
    #[arg(long)]
    dry_run: bool,
}

/// Makes the changes, or only prints them.
///
/// # Errors
/// Not root, or a change failed; those before it stay and are undone by `--remove`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.dry_run && !nix::unistd::geteuid().is_root() {
        bail!("setup changes the system and needs root: sudo memfold setup (or see what it would do: --dry-run)");
    }
    let seen = machine::look()?;
    let changes = if args.remove { plan::remove(&seen) } else { plan::install(&seen, args.user.as_deref()) };
    for change in &changes {
        if !args.dry_run {
            machine::make(change)?;
        }
        let prefix = match change {
            Change::Tell(_) => "note: ",
            _ if args.dry_run => "would ",
            _ => "done: ",
        };
        text::print(&format!("{prefix}{}\n", machine::describe(change)))?;
    }
    if changes.iter().all(|c| matches!(c, Change::Tell(_))) {
        text::print("nothing to change\n")?;
    }
    if !args.dry_run {
        text::print(&format!("{}\n", plan::opened(&machine::look()?)))?;
        if args.remove {
            text::print("programs that have the device open keep it, and log-ins that have the group, until they end\n")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn existing_user(name: &str) -> Result<String, String> {
    match nix::unistd::User::from_name(name) {
        Ok(Some(_)) => Ok(name.to_owned()),
        _ => Err("there is no such user".into()),
    }
}
