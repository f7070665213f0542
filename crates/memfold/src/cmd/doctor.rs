//! `memfold doctor`: what this machine supports, and what to do about the rest.

use crate::doctor::probe::{self, Facts};
use crate::doctor::remedy::{self, Remedy};
use crate::doctor::verdict::{self, Level, Line};
use crate::exit::{self, UNSUPPORTED};
use crate::run::filter;
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
    // Looking further would make such a call.
    if let Some(hindrance) = filter::hindrance(None) {
        return Err(exit::unsupported(format!("programs cannot be folded here: {hindrance}")));
    }
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
        text::print(&human(&report, Look::of_terminal()))?;
    }
    Ok(if report.works { ExitCode::SUCCESS } else { ExitCode::from(UNSUPPORTED) })
}

/// How the report looks.
#[derive(Clone, Copy)]
struct Look {
    colour: bool,
    /// Ticks and crosses, where the terminal has such characters.
    signs: bool,
}

impl Look {
    fn of_terminal() -> Look {
        let colour = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // The first that is set says it (locale(7)).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .filter_map(std::env::var_os)
            .find(|value| !value.is_empty());
        let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
        Look { colour, signs: locale.contains("utf-8") || locale.contains("utf8") }
    }
}

fn human(report: &Report, look: Look) -> String {
    let width = report.lines.iter().map(|l| l.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for line in &report.lines {
        out.push_str(&format!("{} {:width$}  {}\n", mark(line.level, look), line.name, line.found));
    }
    match &report.hindrance {
        None => out.push_str("\nPrograms can be folded here.\n"),
        Some(why) => out.push_str(&format!(
            "\nPrograms cannot be folded here: {why}.\n`memfold run` still gives them the allocator.\n"
        )),
    }
    out.push_str("\nWhat to do next:\n");
    for remedy in &report.remedies {
        out.push_str(&format!("\nFor {}:\n", remedy.purpose));
        remedy.lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
    }
    match report.hindrance {
        None => {
            let before = if report.remedies.is_empty() { "" } else { "\nTo see it work:\n" };
            out.push_str(&format!("{before}  memfold demo\n  memfold run --progress -- CMD\n"));
        }
        Some(_) => out.push_str("\nThen look again:\n  memfold doctor\n"),
    }
    out
}

fn mark(level: Level, look: Look) -> String {
    let (word, sign, code) = match level {
        Level::Good => ("ok  ", "\u{2713}", "32"),
        Level::Note => ("    ", " ", "0"),
        Level::Weak => ("weak", "!", "33"),
        Level::Bad => ("NO  ", "\u{2717}", "31"),
    };
    let shown = if look.signs { sign } else { word };
    if look.colour {
        format!("\x1b[{code}m{shown}\x1b[0m")
    } else {
        shown.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_ends_with_what_to_do_and_has_a_sign_a_line_and_no_bare_number_of_an_error() {
        let facts = probe::gather();
        for hindrance in [None, Some("this user may not make a userfaultfd".to_owned())] {
            let works = hindrance.is_none();
            let report = Report {
                works,
                hindrance,
                lines: verdict::lines(&facts),
                remedies: remedy::remedies(&facts),
                facts: facts.clone(),
            };
            let text = human(&report, Look { colour: false, signs: true });
            let lines = text.lines().take_while(|line| !line.is_empty());
            assert!(
                lines.clone().count() > 15
                    && lines.clone().all(|line| line.starts_with(['\u{2713}', '\u{2717}', '!', ' ']))
            );
            assert!(
                !text.contains("os error")
                    && !text.contains("EPERM")
                    && !text.contains("EINVAL")
                    && !text.contains("ENOENT"),
                "{text}"
            );
            let (_, end) = text.split_once("What to do next:").unwrap();
            assert!(end.contains(if works { "memfold demo" } else { "memfold doctor" }), "{text}");
            let plain = human(&report, Look { colour: false, signs: false });
            assert!(plain.is_ascii(), "{plain}");
        }
    }
}
