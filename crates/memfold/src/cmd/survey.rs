//! `memfold survey`: what folding would save of programs that run, before anything is folded.

use crate::survey::{memory, Row};
use crate::target::Target;
use crate::text::{self, bytes};
use crate::{bar, options, pages, process};
use anyhow::bail;
use memfold_pager::control::Mode;
use memfold_stats::Rng;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Examples:
  memfold survey                        your programs of 16 MiB and more
  sudo memfold survey --all             everybody's
  memfold survey redis-server --for 60s --json

Nothing of the programs is changed. What they did not touch while it looks counts as cold, by the kernel's referenced bits, which are
cleared for that (/proc/PID/clear_refs); a thousand of the cold pages of each are copied and compressed as the pager would.

  FOLDABLE   private memory of the program, in pieces of 64 KiB and more
  COLD       of that what was not touched
  INTO       what the part of it that shrinks would be folded into
  SAVES      what would be saved, less what folding costs
  CPU        what it would take to fold it once

Exit codes: 0 done, 1 failed (no such process, nothing may be looked at), 2 bad usage.";

/// Say what folding would save of programs that run.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Processes, by number or by name [default: all of yours].
    #[arg(value_name = "PID|NAME")]
    targets: Vec<Target>,
    /// Everybody's processes, as far as they may be looked at.
    #[arg(long, conflicts_with = "targets")]
    all: bool,
    /// How long to look: what is not touched in that time is cold.
    #[arg(
        long = "for", value_name = "TIME", default_value = "10s",
        value_parser = options::time_in(Duration::from_millis(100)..=Duration::from_secs(86_400),
            "a time from 100ms to 1d is needed, such as 10s")
    )]
    period: Duration,
    /// Leave out programs with less foldable memory than this, unless they are named.
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = options::size)]
    min: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Looks, and prints what it found.
///
/// # Errors
/// A process was named that there is not, or none may be looked at.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folded: BTreeSet<u32> = pages::visible()
        .iter()
        .filter(|found| found.page.mode == Mode::Embedded)
        .map(|found| found.pid)
        .collect();
    let pids = candidates(&args, &folded)?;
    let mut watched = Vec::new();
    let mut refused = None;
    for pid in pids {
        match memory::forget_touches(pid) {
            Ok(()) => watched.push(pid),
            Err(error) => refused = Some((pid, error)),
        }
    }
    if watched.is_empty() {
        match refused {
            Some((pid, error)) => bail!("process {pid} may not be looked at: {error}"),
            None => bail!("there is no program to look at; `--all` takes everybody's, `--min` smaller ones"),
        }
    }
    wait(args.period, watched.len());
    let mut rng = Rng::new(u64::from(std::process::id()));
    let mut rows: Vec<Row> = watched.iter().filter_map(|&pid| Row::of(pid, &mut rng).ok()).collect();
    rows.retain(|row| !args.targets.is_empty() || row.foldable_bytes >= args.min);
    rows.sort_by_key(|row| std::cmp::Reverse((row.saves_bytes, row.cold_bytes)));
    if args.json {
        let saves: u64 = rows.iter().filter_map(|row| row.saves_bytes).sum();
        text::print_json(&json!({
            "for_ns": args.period.as_nanos() as u64,
            "saves_bytes": saves,
            "folded_already": folded.len(),
            "processes": rows,
        }))?;
    } else {
        text::print(&shown(&rows, args.period, folded.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The processes that are meant.
fn candidates(args: &Args, folded: &BTreeSet<u32>) -> anyhow::Result<Vec<u32>> {
    let me = std::process::id();
    let programs: Vec<u32> = process::all()
        .into_iter()
        .filter(|&pid| {
            pid != me && process::stat(pid).is_some_and(|stat| !stat.of_kernel && stat.state != 'Z')
        })
        .collect();
    if args.targets.is_empty() {
        let mine = |pid: &u32| (args.all || process::is_own(*pid)) && !folded.contains(pid);
        return Ok(programs.into_iter().filter(mine).collect());
    }
    let mut pids = Vec::new();
    for target in &args.targets {
        let before = pids.len();
        pids.extend(programs.iter().copied().filter(|&pid| target.matches(pid)));
        if pids.len() == before {
            match target {
                Target::Pid(pid) => bail!("there is no process {pid}"),
                Target::Name(name) => bail!("there is no process named '{name}'"),
            }
        }
    }
    if let Some(pid) = pids.iter().find(|pid| folded.contains(pid)) {
        bail!("process {pid} is folded already: `memfold stat {pid}` says what that saves");
    }
    pids.dedup();
    Ok(pids)
}

/// Waits, and shows for how long.
fn wait(period: Duration, programs: usize) {
    let bar = bar::bar(period.as_millis() as u64, period < Duration::from_secs(2));
    bar.set_message(format!("watching {programs} programs"));
    let began = Instant::now();
    while let Some(left) = period.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(Duration::from_millis(100)));
        bar.set_position(began.elapsed().as_millis() as u64);
    }
    bar.finish_and_clear();
}

/// Cells of a bar.
const CELLS: u64 = 24;

fn shown(rows: &[Row], period: Duration, folded: usize) -> String {
    let mut out = String::new();
    if rows.is_empty() {
        out.push_str("no program has so much memory that could be folded; `--min 1M` shows smaller ones\n");
        return out;
    }
    let largest = rows.iter().map(|row| row.resident_bytes).max().unwrap_or(1).max(1);
    let mut table =
        vec![["NAME", "PID", "RESIDENT", "FOLDABLE", "COLD", "INTO", "SAVES", "", "CPU", "RESIDENT, SAVED"]
            .map(String::from)
            .to_vec()];
    let unknown = || "?".to_owned();
    for row in rows {
        let found = row.shrinking;
        let saved = row.saves_bytes.unwrap_or(0);
        table.push(vec![
            row.name.clone(),
            row.pid.to_string(),
            bytes(row.resident_bytes),
            bytes(row.foldable_bytes),
            bytes(row.cold_bytes),
            found.map_or_else(unknown, |found| format!("{:.0} %", found.into * 100.0)),
            row.saves_bytes.map_or_else(unknown, bytes),
            row.saves_bytes.map_or_else(String::new, |saved| {
                format!("{:.0} %", text::percent(saved, row.resident_bytes))
            }),
            row.cpu_s.map_or_else(unknown, |seconds| format!("{seconds:.1} s")),
            drawn(row.resident_bytes, saved, largest),
        ]);
    }
    out.push_str(&text::table(&table));
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let (resident, saves) = (sum(|row| row.resident_bytes), sum(|row| row.saves_bytes.unwrap_or(0)));
    let _ = writeln!(
        out,
        "\n{} of {} resident would be saved ({:.0} %), by what was cold for {} s",
        bytes(saves),
        bytes(resident),
        text::percent(saves, resident),
        period.as_secs_f64()
    );
    if rows.len() == 1 {
        for (kind, &bytes_of) in rows[0].kinds.iter().filter(|(_, &bytes_of)| bytes_of > 0) {
            let _ = writeln!(out, "  {:<30} {:>10}", kind.words(), bytes(bytes_of));
        }
        if let Some(found) = rows[0].shrinking.filter(|found| found.shrinks < 0.995) {
            let _ = writeln!(
                out,
                "  of what is cold {:.0} % does not shrink, and would stay",
                (1.0 - found.shrinks) * 100.0
            );
        }
    }
    if folded > 0 {
        let _ = writeln!(out, "{folded} folded programs are left out; `memfold stat` shows them");
    }
    if let Some(note) = rows.iter().find_map(|row| row.note.as_ref()) {
        let _ = writeln!(out, "?: {note}");
    }
    out
}

/// A bar as long as what is resident, with what would be saved of it light.
fn drawn(resident: u64, saved: u64, largest: u64) -> String {
    let cells = |bytes: u64| (u128::from(bytes) * u128::from(CELLS)).div_ceil(u128::from(largest)) as usize;
    let (all, stays) = (cells(resident), cells(resident.saturating_sub(saved)));
    let spaces = (CELLS as usize).saturating_sub(all);
    format!("{}{}{}", "█".repeat(stays), "░".repeat(all.saturating_sub(stays)), " ".repeat(spaces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_what_is_resident() {
        assert_eq!(drawn(100, 50, 100).trim_end(), "█".repeat(12) + &"░".repeat(12));
        assert_eq!(drawn(50, 0, 100).trim_end(), "█".repeat(12));
        assert_eq!(drawn(50, 0, 100).chars().count(), 24);
    }
}
