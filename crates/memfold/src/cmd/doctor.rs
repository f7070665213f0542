//! `memfold doctor`: what this machine supports, and what to do about the rest.

use crate::doctor::probe::{self, Facts};
use crate::doctor::remedy::{self, Remedy};
use crate::doctor::verdict::{self, Level, Line};
use crate::exit::UNSUPPORTED;
use crate::text;
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  memfold doctor
  memfold doctor --json | jq .works

Exit codes: 0 programs can be folded here, 3 they cannot, 2 bad usage.";

/// Say what this machine supports, and what to do about the rest.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    works: bool,
    hindrance: Option<String>,
    facts: Facts,
    lines: Vec<Line>,
    remedies: Vec<Remedy>,
}

/// Looks at the machine and prints the report.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let facts = probe::gather();
    let hindrance = verdict::hindrance(&facts);
    let report = Report {
        works: hindrance.is_none(),
        hindrance,
        lines: verdict::lines(&facts),
        remedies: remedy::remedies(&facts),
        facts,
    };
    if args.json {
        text::print_json(&report)?;
    } else {
        text::print(&human(&report, std::io::stdout().is_terminal()))?;
    }
    Ok(if report.works { ExitCode::SUCCESS } else { ExitCode::from(UNSUPPORTED) })
}

fn human(report: &Report, colour: bool) -> String {
    let width = report.lines.iter().map(|l| l.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for line in &report.lines {
        out.push_str(&format!("{} {:width$}  {}\n", mark(line.level, colour), line.name, line.found));
    }
    match &report.hindrance {
        None => out.push_str("\nPrograms can be folded here.\n"),
        Some(why) => out.push_str(&format!(
            "\nPrograms cannot be folded here: {why}.\n`memfold run` still gives them the allocator.\n"
        )),
    }
    for remedy in &report.remedies {
        out.push_str(&format!("\nFor {}:\n", remedy.purpose));
        remedy.lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
    }
    out
}

fn mark(level: Level, colour: bool) -> String {
    let (word, code) = match level {
        Level::Good => ("ok  ", "32"),
        Level::Note => ("    ", "0"),
        Level::Weak => ("weak", "33"),
        Level::Bad => ("NO  ", "31"),
    };
    if colour {
        format!("\x1b[{code}m{word}\x1b[0m")
    } else {
        word.into()
    }
}
