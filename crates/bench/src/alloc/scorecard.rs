//! `docs/scorecard.md`: the profiles side by side, and beside every other allocator, as Markdown.
//!
//! Invariants: every figure comes from one interleaved experiment, and the page says which command made it, on what.

use super::arm::{Arm, Profile, BASE, OURS};
use super::show::{kernel, million, percent};
use super::{Cell, Options, Standing};
use crate::experiment::Report;
use memfold_experiment::manifest::Manifest;
use memfold_experiment::text::{mib, or_dash};
use std::fmt::{self, Write};
use std::path::Path;

/// The case that the profiles are first compared on.
const FIRST: &str = "random_mixed";

/// The page.
///
/// # Errors
/// None: writing into a string cannot fail; the result is for the `?` of its parts.
pub fn markdown(report: &Report<Options>) -> Result<String, fmt::Error> {
    let mut page = String::new();
    head(&mut page, report)?;
    profiles(&mut page, report)?;
    standings(&mut page, report)?;
    throughput(&mut page, report)?;
    memory(&mut page, report)?;
    kernel_calls(&mut page, report)?;
    latencies(&mut page, report)?;
    Ok(page)
}

fn head(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "# Scorecard of the allocator\n\n\
         Written by `{}`; do not edit. How it is measured: [benchmarks-alloc.md](benchmarks-alloc.md).\n\n\
         {}\n\
         {} runs of {} of each allocator on each pattern, interleaved, in a clean environment. Figures are medians.\n",
        command(&report.manifest),
        machine(&report.manifest, &report.found.arms),
        report.options.rounds,
        report.options.length()
    )
}

/// The command line, in which every path is by its last name: where things lie says nothing.
pub(super) fn command(manifest: &Manifest) -> String {
    let short = |word: &String| match word.rsplit_once('/') {
        Some((before, name)) => match before.split_once('=') {
            Some((option, _)) => format!("{option}={name}"),
            None => name.to_owned(),
        },
        None => word.clone(),
    };
    manifest.command.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// On what it was measured, and the version of each allocator.
pub(super) fn machine(manifest: &Manifest, arms: &[Arm]) -> String {
    let versions = arms.iter().filter(|arm| !arm.is_ours()).filter_map(|arm| {
        let version = arm.version()?;
        Some(format!("{} {version}", arm.name))
    });
    format!(
        "{} x {}, {} MiB, Linux {}; memfold {} {}; {}.",
        manifest.cpus,
        manifest.cpu,
        manifest.memory_bytes >> 20,
        manifest.kernel,
        manifest.version,
        manifest.commit.as_deref().unwrap_or(""),
        versions.collect::<Vec<_>>().join(", ")
    )
}

/// Writes a table; the first column to the left.
pub(super) fn table(
    page: &mut String,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> fmt::Result {
    writeln!(page, "| {} |", head.join(" | "))?;
    writeln!(page, "|---|{}", "---:|".repeat(head.len() - 1))?;
    rows.into_iter().try_for_each(|row| writeln!(page, "| {} |", row.join(" | ")))?;
    writeln!(page)
}

fn profiles(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(page, "## Profiles\n")?;
    let cell = |arm: &str| {
        report.found.cell(FIRST, arm).or_else(|| report.found.cells.iter().find(|cell| cell.arm == arm))
    };
    let shown = report
        .found
        .cells
        .first()
        .map_or(FIRST, |first| report.found.cell(FIRST, BASE).map_or(first.case, |_| FIRST));
    let rows = report.options.profiles.iter().filter_map(|&profile| {
        let arm = Arm::ours(Path::new(""), profile).name;
        let cell = cell(&arm)?;
        let suite =
            report.found.standings.iter().find(|s| s.arm == arm && s.beside.as_deref() == Some(BASE))?;
        let name = if profile == Profile::default() {
            format!("**{}**", profile.name())
        } else {
            profile.name().into()
        };
        Some(vec![
            name,
            format!("{:.1}", cell.calls_per_s / 1e6),
            percent(cell.calls_per_s_moments.cv),
            format!("{:.1}", mib(cell.rss_peak_bytes)),
            kernel(cell.kernel_calls_per_call),
            format!("{:.2}", suite.calls),
            format!("{:.2}", suite.rss),
            profile.use_case().to_owned(),
        ])
    });
    let throughput = format!("`{shown}`, M calls/s");
    let head = [
        "profile",
        &throughput,
        "CV",
        "resident, MiB",
        "kernel calls a call",
        "suite over glibc",
        "memory over glibc",
        "for",
    ];
    table(page, &head, rows)
}

fn standings(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "## Over the whole suite\n\n\
         Geometric means over the {} patterns, of ratios of runs of the same round. *The best* is whichever other allocator is \
         fastest, or smallest, on a pattern.\n",
        report.options.measures.cases.len()
    )?;
    let row = |standing: &Standing| {
        vec![
            format!("{} over {}", standing.arm, standing.beside.as_deref().unwrap_or("*the best*")),
            format!("{:.3}", standing.calls),
            format!("{:.3} ({})", standing.least.1, standing.least.0),
            format!("{:.3}", standing.rss),
        ]
    };
    let head = ["", "throughput", "on its least pattern", "most resident memory"];
    table(page, &head, report.found.standings.iter().map(row))
}

/// A table with a row for each case and a column for each arm.
fn by_case(page: &mut String, report: &Report<Options>, show: impl Fn(&Cell) -> String) -> fmt::Result {
    let arms: Vec<&str> = report.found.arms.iter().map(|arm| arm.name.as_str()).collect();
    let rows = report.options.measures.cases.iter().map(|case| {
        let cells = arms.iter().map(|arm| or_dash(report.found.cell(case.name, arm), &show));
        std::iter::once(format!("`{}`", case.name)).chain(cells).collect()
    });
    table(page, &[&["pattern"], arms.as_slice()].concat(), rows)
}

fn throughput(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "## Throughput\n\nMillions of calls a second, and the coefficient of variation over the runs.\n"
    )?;
    by_case(page, report, |cell| {
        format!("{} ({})", million(cell.calls_per_s), percent(cell.calls_per_s_moments.cv))
    })
}

fn memory(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "## Memory\n\nMost resident memory and, after the slash, anonymous memory at the end, MiB. Minor faults are below.\n"
    )?;
    by_case(page, report, |cell| {
        format!("{:.1} / {:.1}", mib(cell.rss_peak_bytes), mib(cell.anonymous_bytes))
    })?;
    writeln!(page, "Minor faults of the whole run:\n")?;
    by_case(page, report, |cell| format!("{:.0}", cell.minor_faults))
}

fn kernel_calls(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "## Kernel calls\n\n`mmap`, `munmap`, `mremap`, `madvise`, `mprotect` and `brk`, a call of the allocator, after warm-up \
         (`fragmentation`: from the start), in a run of its own.\n"
    )?;
    if let Some(why) = &report.found.uncounted {
        writeln!(page, "Not counted: {why}.\n")?;
    }
    by_case(page, report, |cell| kernel(cell.kernel_calls_per_call))
}

fn latencies(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "## Latency\n\nTime of a sampled step, ns: p50 / p99 / p99.9 / p99.99. A step is one call, or a free and a malloc; in \
         `thread_churn`, the life of a thread.\n"
    )?;
    by_case(page, report, |cell| {
        or_dash(cell.latency, |l| {
            let ns = |value: Option<u64>| or_dash(value, |ns| ns.to_string());
            format!("{} / {} / {} / {}", l.p50_ns, ns(l.p99_ns), ns(l.p999_ns), ns(l.p9999_ns))
        })
    })?;
    writeln!(page, "The default profile is `{}` in these tables.", OURS)
}
