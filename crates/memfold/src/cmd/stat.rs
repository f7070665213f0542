//! `memfold stat`: the counters of running programs.

use crate::cmd::stat_alloc;
use crate::complete;
use crate::pages::{self, Found};
use crate::reasons;
use crate::target::Target;
use crate::text::{self, bytes, count, nanos};
use crate::watch::user;
use crate::words::words;
use crate::{options, process};
use clap_complete::engine::ArgValueCompleter;
use memfold_inspect::{Costs, Inventory, Pages, Percentiles, Sizes, Snapshot, Source};
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use memfold_pager::tier::choice::{Choice, UNSEALED};
use nix::unistd::geteuid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = concat!(
    "\
Examples:
  memfold stat                 every folded process of yours
  memfold stat 4711            one of them, with its settings, and why what is resident is not folded
  memfold stat redis-server    those of this name
  memfold stat --alloc 4711    what its allocator holds, by size class
  memfold stat --watch         again every second, until Ctrl-C
  memfold stat --json --watch=5s | jq .    one JSON array a line

Root sees everybody's processes.

",
    words!(),
    "

Exit codes: 0 done (also if nothing is folded), 1 failed or no such folded process, 2 bad usage."
);

/// Show the counters of folded processes.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// This process only, or those of this name.
    #[arg(value_name = "PID|NAME", add = ArgValueCompleter::new(complete::processes))]
    target: Option<Target>,
    /// Show what the allocator holds and how often it called the kernel.
    #[arg(long)]
    alloc: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print again after every interval.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", require_equals = true,
          value_parser = interval)]
    watch: Option<Duration>,
}

/// What JSON shows of a process.
#[derive(Serialize)]
struct Row {
    pid: u32,
    parent_pid: u32,
    name: String,
    /// The user, by the effective id.
    uid: Option<u32>,
    mode: &'static str,
    reason: Option<String>,
    paused: bool,
    asleep: bool,
    age_ns: u64,
    #[serde(flatten, serialize_with = "memfold_inspect::fields")]
    sizes: Sizes,
    saved_bytes_mean: u64,
    #[serde(serialize_with = "memfold_inspect::fields")]
    pages: Pages,
    fault_ns: Percentiles,
    restore_ns: Percentiles,
    tier_read_ns: Percentiles,
    #[serde(flatten, serialize_with = "memfold_inspect::fields")]
    costs: Costs,
    stall_pct: f64,
    /// Why what is resident is not folded, as counted last.
    why: Option<Inventory>,
    /// The socket of the daemon under whose budget it wants to be.
    daemon: Option<String>,
    /// Its share of the budget, while a daemon grants one.
    share_bytes: Option<u64>,
    /// The tier below memory that is open.
    tier: Option<String>,
    /// Whether nobody else can read or change what lies there.
    tier_sealed: Option<bool>,
    /// Bytes of it that it may take, where a daemon shares it out.
    tier_share_bytes: Option<u64>,
    /// Bytes read from it for each that something waited for.
    tier_read_amplification: Option<f64>,
    /// What tells which memory is cold.
    source: Source,
    /// In their own units: ns, bytes, millionths.
    settings: BTreeMap<&'static str, serde_json::Value>,
    /// As people read them.
    #[serde(skip)]
    shown: Vec<(&'static str, String)>,
}

/// Prints the table, once or again and again.
///
/// # Errors
/// A process was named that is not folded or not the user's.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    loop {
        let found = args.target.as_ref().map_or_else(|| Ok(pages::visible()), Target::all)?;
        if args.alloc {
            let rows: Vec<_> = found.iter().map(stat_alloc::row).collect();
            show(&args, &rows, stat_alloc::one, stat_alloc::all)?;
        } else {
            let rows: Vec<Row> = found.iter().map(row).collect();
            show(&args, &rows, one, all)?;
        }
        match args.watch {
            Some(interval) if text::is_heard() => std::thread::sleep(interval),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Prints rows as they were asked for.
fn show<R: Serialize>(
    args: &Args,
    rows: &[R],
    one: fn(&R) -> String,
    all: fn(&[R]) -> String,
) -> anyhow::Result<()> {
    match (args.json, args.watch) {
        (true, None) => text::print_json(&rows),
        (true, Some(_)) => text::print(&(serde_json::to_string(rows)? + "\n")),
        (false, watch) => {
            let clear = if watch.is_some() && std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
            let body = match rows {
                [row] if args.target.is_some() => one(row),
                rows => all(rows),
            };
            text::print(&format!("{clear}{body}"))
        }
    }
}

fn row(found: &Found) -> Row {
    let Snapshot { parent_pid, mode, paused, asleep, started_ns, .. } = found.page;
    let pid = found.pid;
    let page = &found.page;
    let settings = Setting::ALL.into_iter().map(|s| (s, page.settings[s as usize]));
    let age_ns = memfold_sys::time::now().0.saturating_sub(started_ns);
    Row {
        pid,
        parent_pid,
        name: process::name(pid),
        uid: process::users(pid).get(1).copied(),
        mode: mode.name(),
        reason: (mode == Mode::Off).then(|| page.reason.clone()),
        paused,
        asleep,
        age_ns,
        sizes: page.sizes,
        saved_bytes_mean: page.saved_byte_millis.checked_div(age_ns / 1_000_000).unwrap_or(0),
        pages: page.pages,
        fault_ns: page.fault.percentiles(),
        restore_ns: page.restore.percentiles(),
        tier_read_ns: page.tier_read.percentiles(),
        costs: page.costs,
        stall_pct: text::percent(page.costs.stall_ns, age_ns),
        why: page.inventory.clone(),
        daemon: (!page.daemon.is_empty()).then(|| page.daemon.clone()),
        share_bytes: (page.share_in_force != 0 && page.share_in_force != u64::MAX)
            .then_some(page.share_in_force),
        tier: (!page.tier.is_empty()).then(|| page.tier.clone()),
        tier_sealed: Choice::parse(&page.tier).ok().map(|choice| choice.sealed),
        tier_share_bytes: (page.tier_share != 0).then_some(page.tier_share),
        tier_read_amplification: text::ratio(page.costs.tier_read_bytes, page.costs.tier_asked_bytes),
        source: page.source.clone(),
        shown: settings.clone().map(|(s, value)| (s.name(), options::show(s, value))).collect(),
        settings: settings.map(|(s, value)| (s.name(), options::json(s, value))).collect(),
    }
}

fn state(row: &Row) -> String {
    if row.paused {
        format!("{}, paused", row.mode)
    } else if row.asleep {
        format!("{}, asleep", row.mode)
    } else {
        row.mode.into()
    }
}

fn all(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no folded processes; `memfold run -- COMMAND` starts one\n".into();
    }
    // Only root sees others than its own.
    let users = rows.iter().any(|row| row.uid != Some(geteuid().as_raw()));
    let mut header = vec!["NAME", "PID"];
    header.extend(users.then_some("USER"));
    header.extend([
        "MODE",
        "MANAGED",
        "FOLDED",
        "INTO",
        "COST",
        "SAVED",
        "RESTORED",
        "FAULT P50",
        "P99",
        "STALL",
    ]);
    let mut table = vec![header.into_iter().map(String::from).collect()];
    table.extend(rows.iter().map(|row| {
        let mut cells = vec![row.name.clone(), row.pid.to_string()];
        cells.extend(users.then(|| user(row.uid)));
        cells.extend([
            state(row),
            bytes(row.sizes.managed_bytes),
            bytes(row.sizes.evicted_bytes),
            bytes(row.sizes.stored_bytes),
            bytes(row.sizes.overhead_bytes),
            bytes(row.sizes.saved_bytes),
            count(row.pages.restored),
            nanos(row.fault_ns.p50),
            nanos(row.fault_ns.p99),
            format!("{:.3} %", row.stall_pct),
        ]);
        cells
    }));
    text::table(&table)
}

/// What was foreseen, and what became of it as samples tell.
fn foreseen(predicted: u64, hit: u64, wasted: u64) -> String {
    format!("{}, about {} wanted, {} not", count(predicted), count(hit.min(predicted)), count(wasted))
}

/// What folding costs, and what that consists of.
fn cost(sizes: &Sizes) -> String {
    let Sizes { overhead_bytes, store_bytes, table_bytes, dictionary_bytes, stored_bytes, .. } = *sizes;
    let parts = [
        ("compressed pages", stored_bytes),
        ("gaps and headers", store_bytes.saturating_sub(stored_bytes)),
        ("tables", table_bytes),
        ("dictionaries", dictionary_bytes),
        (
            "buffers",
            [store_bytes, table_bytes, dictionary_bytes]
                .iter()
                .fold(overhead_bytes, |rest, part| rest.saturating_sub(*part)),
        ),
    ];
    let parts: Vec<String> = parts.iter().map(|(name, n)| format!("{name} {}", bytes(*n))).collect();
    format!("{} ({})", bytes(overhead_bytes), parts.join(", "))
}

fn one(row: &Row) -> String {
    let mut table = Vec::new();
    let mut line = |name: &str, value: String| table.push(vec![name.to_owned(), value]);
    line("name", row.name.clone());
    line("process", row.pid.to_string());
    line("user", user(row.uid));
    line("mode", state(row));
    if let Some(reason) = &row.reason {
        line("reason", reason.clone());
    }
    line("managed", bytes(row.sizes.managed_bytes));
    line("resident of that", bytes(row.sizes.resident_bytes));
    line("set aside", bytes(row.sizes.aside_bytes));
    line("folded", bytes(row.sizes.evicted_bytes));
    line("folded into", bytes(row.sizes.stored_bytes));
    if let Some(tier) = &row.tier {
        line("tier", tier.clone());
        if row.tier_sealed == Some(false) {
            line("which", UNSEALED.into());
        }
    }
    if let Some(share) = row.tier_share_bytes {
        line("share of the tier", bytes(share));
    }
    if row.costs.tier_writes != 0 {
        line("of the folded in the tier", bytes(row.sizes.tier_bytes));
        line("which takes there", bytes(row.sizes.tier_file_bytes));
    }
    line("cost of folding", cost(&row.sizes));
    line("saved", bytes(row.sizes.saved_bytes));
    line("saved on average", bytes(row.saved_bytes_mean));
    line("pages folded", count(row.pages.evicted));
    line("pages restored", count(row.pages.restored));
    line("second chances", count(row.pages.second_chance));
    let Pages { predicted, predicted_hit, predicted_wasted, .. } = row.pages;
    line("foreseen by a touch", foreseen(predicted, predicted_hit, predicted_wasted));
    let Pages { periods_predicted, periods_hit, periods_wasted, .. } = row.pages;
    line("foreseen by time", foreseen(periods_predicted, periods_hit, periods_wasted));
    line("pages lost", count(row.pages.lost));
    let p = &row.fault_ns;
    line(
        "faults",
        format!("{}, p50 {}, p99 {}, max {}", count(p.count), nanos(p.p50), nanos(p.p99), nanos(p.max)),
    );
    if row.costs.tier_writes != 0 {
        let Costs { tier_writes, tier_errors, tier_waits, tier_wait_ns, .. } = row.costs;
        let r = &row.tier_read_ns;
        let (reads, slow) = (count(r.count), format!("p50 {}, p99 {}", nanos(r.p50), nanos(r.p99)));
        line("reads from the tier", format!("{reads}, {slow}, max {}", nanos(r.max)));
        if let Some(times) = row.tier_read_amplification {
            line("read for what was asked for", format!("{times:.1} times"));
        }
        line("writes to the tier", format!("{}, {} errors", count(tier_writes), count(tier_errors)));
        if tier_waits != 0 {
            line(
                "waited while it was away",
                format!("{} ({} times)", nanos(tier_wait_ns), count(tier_waits)),
            );
        }
        line("CPU, tier", nanos(row.costs.cpu_tier_ns));
    }
    line("stalled", format!("{} ({:.3} %)", nanos(row.costs.stall_ns), row.stall_pct));
    if !row.settings[Setting::ResidentLimit.name()].is_null() {
        line("resident, all anonymous", bytes(row.sizes.anonymous_bytes));
        let Costs { limit_waits, limit_wait_ns, limit_misses, .. } = row.costs;
        line("waited for room", format!("{} ({} times)", nanos(limit_wait_ns), count(limit_waits)));
        line("let through above the limit", format!("{} times", count(limit_misses)));
    }
    line("CPU, background", nanos(row.costs.cpu_background_ns));
    line("CPU, faults", nanos(row.costs.cpu_fault_ns));
    if let Some(daemon) = &row.daemon {
        line("daemon", daemon.clone());
        line("share of its budget, a wish", row.share_bytes.map_or("none".into(), bytes));
    }
    for (name, value) in &row.shown {
        line(name, value.clone());
    }
    if !row.source.is_as_asked() {
        line("source in use", row.source.words());
    }
    if let Some(why) = &row.why {
        let ago = nanos(row.age_ns.saturating_sub(why.taken_at_ns));
        line("resident of all, counted", format!("{} ({ago} ago)", bytes(why.resident_bytes)));
        reasons::short(why).for_each(|(name, part)| line(&format!("  {name}"), bytes(part)));
    }
    text::list(&table)
}

fn interval(text: &str) -> Result<Duration, String> {
    match memfold_pager::config::parse_duration(text) {
        Some(ns) if (50_000_000..=86_400_000_000_000).contains(&ns) => Ok(Duration::from_nanos(ns)),
        _ => Err("a time between 50ms and 1d is needed, such as 500ms or 5s".into()),
    }
}
