//! `memfold report`: tables, plots and the page of results that are already there, made anew.

use super::pagecache;
use crate::{exit, text};
use anyhow::Result;
use memfold_bench::ab::{self, Folder};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold report fairness_results
                                 the same for results of `memfold pagecache run` and `corun`
  memfold report runs/pager      writes runs/pager/report.html, its tables and plots, and prints the summary

Exit codes: 0 done, 1 failed, 2 bad usage.";

/// Make one self-contained HTML page, tables and plots of the results of `memfold bench pager` or `memfold pagecache`.
///
/// Everything is made from the raw runs, so results of an interrupted experiment can be looked at too.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory that was given as --out.
    directory: PathBuf,
    /// Print JSON instead of the summary.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the directory holds no results, with exit code 2, or cannot be written to.
pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(done) = pagecache::report(&args.directory, args.json) {
        return done;
    }
    let folder = Folder::open(&args.directory).map_err(|error| exit::usage(format!("{error:#}")))?;
    let results = ab::write(&folder)?;
    if args.json {
        text::print_json(&results)?;
    } else {
        text::print(&results.to_string())?;
        text::say(format_args!("wrote {}", args.directory.join("report.html").display()));
    }
    Ok(ExitCode::SUCCESS)
}
