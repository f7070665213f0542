//! `memfold core`: a core dump in which folded pages are in their place.

use crate::core_dump::{CoreDump, Tally};
use crate::{bar, exit, text};
use anyhow::{Context, Result};
use memfold_sys::PAGE_SIZE;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold core core.1234                        writes core.1234.whole
  gdb ./program core.1234.whole
  memfold core core.1234 --output /tmp/whole    writes it elsewhere
  coredumpctl dump 1234 --output core.1234      saves one that systemd keeps

In a core dump of a folded program the pages that were folded read as zeros: their bytes are in the
pager's memory. The copy has them in their place, and nothing else is changed. The dump must have
private anonymous memory (coredump(5)), and be of a program that this build of memfold folded.
Exit codes: 0 done, 1 failed, or some pages could not be brought back, 2 bad usage, or no core dump
of a folded program.";

/// Put folded pages back into a core dump, so that a debugger sees them.
#[derive(clap::Args)]
#[command(name = "core", after_help = EXAMPLES)]
pub struct Args {
    /// The core dump; it is only read.
    core: PathBuf,
    /// Where the copy goes, a file that does not exist yet [default: CORE with `.whole` behind it].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    core: &'a Path,
    output: &'a Path,
    /// Pages that are in their place again.
    pages_back: u64,
    /// Pages of which the bytes are not in the dump.
    pages_lost: u64,
    /// Pages of memory that the dump leaves out.
    pages_left_out: u64,
    /// Tables that are not in the dump.
    tables_unread: u64,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 if the file is no core dump of a folded program.
pub fn run(args: Args) -> Result<ExitCode> {
    let Args { core, output, json } = args;
    let output = output.unwrap_or_else(|| {
        let mut name = core.clone().into_os_string();
        name.push(".whole");
        name.into()
    });
    let dump = CoreDump::open(&core)?;
    if output.symlink_metadata().is_ok() {
        return Err(exists(&output));
    }
    let name = core.display();
    let found = dump.tables().with_context(|| format!("cannot read core dump {name}"))?;
    let mut tables = Vec::new();
    for one in found {
        tables.push(one.map_err(|foreign| {
            let (theirs, ours) = (foreign.version(), env!("CARGO_PKG_VERSION"));
            exit::usage(format!(
                "{name} is of a program that another build of memfold folded (version {theirs}; this one is {ours}): \
                 use the memfold that ran it"
            ))
        })?);
    }
    if tables.is_empty() {
        let why = if dump.is_cut_short() {
            "It was cut short (ulimit -c)"
        } else {
            "The program ran without memfold, or the dump leaves private memory out (/proc/PID/coredump_filter, \
             coredump(5))"
        };
        return Err(exit::usage(format!(
            "nothing can be put back into {name}: memfold's tables are not in it. {why}"
        )));
    }
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let copy = tempfile::Builder::new()
        .prefix(".memfold-core-")
        .tempfile_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let progress = bar::bar(dump.len(), json);
    dump.copy(copy.as_file(), |bytes| {
        progress.set_position(bytes);
        progress.set_message(format!("{} of {}", text::bytes(bytes), text::bytes(dump.len())));
    })
    .with_context(|| format!("cannot copy {name} to {}", directory.display()))?;
    progress.finish_and_clear();
    let mut all = Tally::default();
    for tables in &tables {
        let tally = dump.unfold(tables, copy.as_file())?;
        all.back += tally.back;
        all.lost += tally.lost;
        all.left_out += tally.left_out;
        all.unread += tally.unread;
    }
    copy.persist_noclobber(&output).map_err(|error| match error.error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(&output),
        _ => anyhow::Error::new(error.error).context(format!("cannot make {}", output.display())),
    })?;
    report(&core, &output, all, json)?;
    Ok(if all.lost + all.unread == 0 { ExitCode::SUCCESS } else { exit::FAILED.into() })
}

fn exists(output: &Path) -> anyhow::Error {
    exit::usage(format!("{} exists already: name another file with --output", output.display()))
}

fn report(core: &Path, output: &Path, tally: Tally, json: bool) -> Result<()> {
    let Tally { back, lost, left_out, unread } = tally;
    if json {
        let report = Report {
            core,
            output,
            pages_back: back,
            pages_lost: lost,
            pages_left_out: left_out,
            tables_unread: unread,
        };
        return text::print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    text::print(&format!(
        "{}: {} folded pages ({}) are in their place\n",
        output.display(),
        text::count(back),
        text::bytes(back * PAGE_SIZE as u64)
    ))?;
    if left_out != 0 {
        text::say(format_args!(
            "{} more are of memory that the dump leaves out (coredump(5))",
            text::count(left_out)
        ));
    }
    if lost != 0 {
        text::say(format_args!(
            "{} more read as zeros: their bytes are not in the dump, which may have been cut short (ulimit -c)",
            text::count(lost)
        ));
    }
    if unread != 0 {
        text::say(format_args!(
            "{} of memfold's tables are not in the dump, which may have been cut short (ulimit -c): folded pages may read as \
             zeros that nothing tells of",
            text::count(unread)
        ));
    }
    Ok(())
}
