//! `memfold top`: a screen of all folded programs.

use crate::exit;
use crate::options;
use crate::text;
use crate::top::columns::Column;
use crate::top::{self, Options};
use crate::words::words;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = concat!(
    "\
Examples:
  memfold top                        every folded program of yours, again and again
  memfold top --sort faults          those that wait the most first
  memfold top --filter redis         those of which the name, number, user, policy or reason has this in it
  memfold top --once                 one table, for a pipe
  NO_COLOR=1 memfold top             without colours

Root sees everybody's programs. `h` says which keys do what; Enter opens a program. The screen takes less than half a per cent of a CPU: with
very many programs it is drawn less often.

",
    words!(),
    "
Columns: RESIDENT is all memory of the program in RAM, as the kernel counts it; SAVED% is saved of what would be resident without
folding; WAITS% is the time that its threads have waited for folded memory, of the time since the last look; CPU% is what folding takes of one CPU;
TIER is what lies on disk (`run --tier`); WHY NOT MORE is the reason for which the most of what is managed is not folded.

Exit codes: 0 done, 1 failed, 2 bad usage (no terminal)."
);

/// Show all folded programs on one screen, and steer them.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Print one table and end.
    #[arg(long)]
    once: bool,
    /// The time from one look to the next.
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = options::time_in(Duration::from_millis(100)..=Duration::from_secs(3600),
            "a time between 100ms and 1h is needed, such as 1s")
    )]
    every: Duration,
    /// The column to sort by: name, pid, user, resident, managed, folded, into, cost, saved, saved-pct, faults, waits, cpu, policy, tier or why.
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "saved", hide_possible_values = true)]
    sort: Column,
    /// Only programs of which the name, number, user, policy or reason has this in it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
}

/// Shows the screen, or prints the table.
///
/// # Errors
/// There is no terminal, or it cannot be used.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options { every: args.every, sort: args.sort, filter: args.filter };
    if args.once {
        text::print(&top::once(&options))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(exit::usage("a terminal is needed; `memfold top --once` prints one table, and `memfold stat --json` is for programs"));
    }
    if std::env::var("TERM").is_ok_and(|term| term == "dumb") {
        return Err(exit::usage("a terminal that can move its cursor is needed (TERM is dumb); `memfold top --once` prints one table"));
    }
    top::show(&options)?;
    Ok(ExitCode::SUCCESS)
}
