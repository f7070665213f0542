//! The results as tables on a terminal.

use super::arena::ArenaReport;
use super::soak::SoakReport;
use super::summary::Cell;
use super::{AllocReport, BASE};
use std::fmt::{self, Display, Formatter};

/// Bytes as MiB.
pub(super) fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// A figure, or a dash where there is none.
pub(super) fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// A share as per cent.
pub(super) fn percent(share: Option<f64>) -> String {
    or_dash(share, |share| format!("{:.1} %", share * 100.0))
}

/// Kernel calls or faults a call; the usual figures lie between 1e-8 and 1.
pub(super) fn kernel(calls: Option<f64>) -> String {
    or_dash(calls, |calls| if calls == 0.0 { "0".into() } else { format!("{calls:.1e}") })
}

const HEAD: [&str; 14] = [
    "M calls/s",
    "mean",
    "sd",
    "CV",
    "min",
    "max",
    "over glibc",
    "peak MiB",
    "end MiB",
    "faults",
    "kernel/call",
    "p50 ns",
    "p99",
    "p99.9",
];

fn row(cell: &Cell) -> Vec<String> {
    let moments = cell.calls_per_s_moments;
    let million = |rate: f64| format!("{:.2}", rate / 1e6);
    let latency = |pick: fn(&super::Latency) -> u64| or_dash(cell.latency.as_ref(), |l| pick(l).to_string());
    let ratio = cell.calls_over_glibc;
    // A star stands at a difference: an interval that excludes 1.
    let star = if ratio.differs { "*" } else { "" };
    vec![
        million(cell.calls_per_s),
        million(moments.mean),
        million(moments.sd),
        percent(moments.cv),
        million(moments.min),
        million(moments.max),
        if cell.arm == BASE { String::new() } else { format!("{:.2}{star}", ratio.median) },
        format!("{:.1}", mib(cell.rss_peak_bytes)),
        format!("{:.1}", mib(cell.rss_bytes)),
        format!("{:.0}", cell.minor_faults),
        kernel(cell.kernel_calls_per_call),
        latency(|l| l.p50_ns),
        latency(|l| l.p99_ns),
        latency(|l| l.p999_ns),
    ]
}

/// What the same work took: the whole and, beside it, for each call of the allocator.
const WORK: [&str; 7] =
    ["operations", "time ms", "ns/op", "faults", "faults/op", "kernel calls", "kernel calls/op"];

fn work(cell: &Cell) -> Vec<String> {
    vec![
        format!("{:.0}", cell.operations),
        format!("{:.1}", cell.elapsed_ns / 1e6),
        format!("{:.2}", cell.ns_per_call),
        format!("{:.0}", cell.phase_faults),
        kernel(Some(cell.faults_per_call)),
        or_dash(cell.kernel_calls, |calls| calls.to_string()),
        kernel(cell.kernel_calls_per_call),
    ]
}

/// Writes rows under a head, the first column to the left and the others to the right.
fn table(f: &mut Formatter<'_>, head: &[&str], rows: &[(String, Vec<String>)]) -> fmt::Result {
    let first = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let width = |place: usize| {
        let cells = rows.iter().filter_map(|(_, cells)| cells.get(place)).map(|cell| cell.chars().count());
        cells.chain([head[place].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    write!(f, "  {:first$}", "")?;
    head.iter().zip(&widths).try_for_each(|(name, width)| write!(f, "  {name:>width$}"))?;
    writeln!(f)?;
    for (name, cells) in rows {
        write!(f, "  {name:first$}")?;
        cells.iter().zip(&widths).try_for_each(|(cell, width)| write!(f, "  {cell:>width$}"))?;
        writeln!(f)?;
    }
    Ok(())
}

impl Display for AllocReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs of {} of each allocator on each pattern, interleaved; medians; * a difference from glibc",
            self.options.rounds,
            self.options.length()
        )?;
        for case in &self.options.cases {
            writeln!(f, "\n{}: {}", case.name, case.about)?;
            let own = self.cells.iter().filter(|cell| cell.case == case.name);
            let rows: Vec<_> = own.clone().map(|cell| (cell.arm.clone(), row(cell))).collect();
            table(f, &HEAD, &rows)?;
            if self.options.operations.is_some() {
                let rows: Vec<_> = own.map(|cell| (cell.arm.clone(), work(cell))).collect();
                table(f, &WORK, &rows)?;
            }
        }
        writeln!(f, "\nover the suite, geometric means; the least pattern in parentheses")?;
        for standing in &self.standings {
            let beside = standing.beside.as_deref().unwrap_or("the best of each pattern");
            let (name, least) = standing.least;
            writeln!(
                f,
                "  {} over {beside}: calls {:.3} ({name} {least:.3}), peak memory {:.3}",
                standing.arm, standing.calls, standing.rss
            )?;
        }
        if let Some(why) = &self.uncounted {
            writeln!(f, "\n{why}")?;
        }
        Ok(())
    }
}

impl Display for ArenaReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "the page arena off and on, {} runs each, interleaved; medians", self.options.rounds)?;
        let head =
            ["k calls/s off", "on", "on over off", "faults off", "on", "faults saved", "peak MiB off", "on"];
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let cells = vec![
                    format!("{:.0}", row.off.calls_per_s / 1e3),
                    format!("{:.0}", row.on.calls_per_s / 1e3),
                    row.calls_on_over_off.to_string(),
                    format!("{:.0}", row.off.minor_faults),
                    format!("{:.0}", row.on.minor_faults),
                    format!("{:.1} %", row.faults_saved * 100.0),
                    format!("{:.1}", mib(row.off.rss_peak_bytes)),
                    format!("{:.1}", mib(row.on.rss_peak_bytes)),
                ];
                (row.case.to_owned(), cells)
            })
            .collect();
        table(f, &head, &rows)
    }
}

impl Display for SoakReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} epochs of {:.1} s of each allocator, one process each, by turns",
            self.epochs_of_each(),
            self.options.epoch_millis as f64 / 1e3
        )?;
        let head = [
            "M calls/s",
            "CV",
            "p1",
            "p0.1",
            "min",
            "p50 ns",
            "p99",
            "p99.9",
            "p99.99",
            "first MiB",
            "last MiB",
            "drift",
        ];
        for case in &self.options.cases {
            writeln!(f, "\n{}: {}", case.name, case.about)?;
            let own = self.cells.iter().filter(|cell| cell.case == case.name);
            let rows: Vec<_> = own
                .map(|cell| {
                    let million = |rate: f64| format!("{:.2}", rate / 1e6);
                    let ns = |pick: fn(&super::Latency) -> u64| {
                        or_dash(cell.latency.as_ref(), |latency| pick(latency).to_string())
                    };
                    let cells = vec![
                        million(cell.calls_per_s),
                        percent(cell.calls_per_s_moments.cv),
                        million(cell.calls_per_s_p1),
                        million(cell.calls_per_s_p01),
                        million(cell.calls_per_s_moments.min),
                        ns(|l| l.p50_ns),
                        ns(|l| l.p99_ns),
                        ns(|l| l.p999_ns),
                        ns(|l| l.p9999_ns),
                        format!("{:.1}", mib(cell.rss_first_bytes)),
                        format!("{:.1}", mib(cell.rss_last_bytes)),
                        format!("{:+.1} %", cell.rss_drift * 100.0),
                    ];
                    (cell.arm.clone(), cells)
                })
                .collect();
            table(f, &head, &rows)?;
        }
        Ok(())
    }
}
