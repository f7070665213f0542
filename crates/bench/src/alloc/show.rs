//! The results as tables on a terminal.

use super::summary::Cell;
use super::{arena, soak, Options, BASE};
use crate::experiment::Report;
use memfold_experiment::text::{cells, columns, mib, or_dash};
use std::fmt::{self, Display, Formatter};

/// A share as per cent.
pub(super) fn percent(share: Option<f64>) -> String {
    or_dash(share, |share| format!("{:.1} %", share * 100.0))
}

/// Kernel calls or faults a call; the usual figures lie between 1e-8 and 1.
pub(super) fn kernel(calls: Option<f64>) -> String {
    or_dash(calls, |calls| if calls == 0.0 { "0".into() } else { format!("{calls:.1e}") })
}

/// Millions of a rate, with two places, and as many more as it takes to show three digits.
pub(super) fn million(rate: f64) -> String {
    let millions = rate / 1e6;
    let places = if millions > 0.0 { (2.0 - millions.log10().floor()).clamp(2.0, 9.0) } else { 2.0 };
    format!("{millions:.*}", places as usize)
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
    let latency = |pick: fn(&super::Latency) -> Option<u64>| {
        or_dash(cell.latency.as_ref().and_then(pick), |ns| ns.to_string())
    };
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
        latency(|l| Some(l.p50_ns)),
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

/// Writes rows under a head, each after the name that stands first.
pub(super) fn table<'a, const N: usize>(
    f: &mut Formatter<'_>,
    head: [&str; N],
    rows: impl IntoIterator<Item = (&'a str, Vec<String>)>,
) -> fmt::Result {
    let named = |(name, cells): (&str, Vec<String>)| [vec![name.to_owned()], cells].concat();
    let head = [vec![String::new()], cells(head)].concat();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.into_iter().map(named)).collect();
    columns(&rows, 1).lines().try_for_each(|line| writeln!(f, "  {line}"))
}

impl Display for Report<Options> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs of {} of each allocator on each pattern, interleaved; medians; * a difference from glibc",
            self.options.rounds,
            self.options.length()
        )?;
        for case in &self.options.measures.cases {
            writeln!(f, "\n{}: {}", case.name, case.about)?;
            let own = self.found.cells.iter().filter(|cell| cell.case == case.name);
            table(f, HEAD, own.clone().map(|cell| (cell.arm.as_str(), row(cell))))?;
            if self.options.operations.is_some() {
                table(f, WORK, own.map(|cell| (cell.arm.as_str(), work(cell))))?;
            }
        }
        writeln!(f, "\nover the suite, geometric means; the least pattern in parentheses")?;
        for standing in &self.found.standings {
            let beside = standing.beside.as_deref().unwrap_or("the best of each pattern");
            let (name, least) = standing.least;
            writeln!(
                f,
                "  {} over {beside}: calls {:.3} ({name} {least:.3}), peak memory {:.3}",
                standing.arm, standing.calls, standing.rss
            )?;
        }
        if let Some(why) = &self.found.uncounted {
            writeln!(f, "\n{why}")?;
        }
        Ok(())
    }
}

impl Display for Report<arena::Options> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "the page arena off and on, {} runs each, interleaved; medians", self.options.rounds)?;
        let head =
            ["k calls/s off", "on", "on over off", "faults off", "on", "faults saved", "peak MiB off", "on"];
        let rows = self.found.rows.iter().map(|row| {
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
            (row.case, cells)
        });
        table(f, head, rows)
    }
}

impl Display for Report<soak::Options> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} epochs of {:.1} s of each allocator, one process each, by turns",
            self.options.epochs_of_each(),
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
        for case in self.options.cases() {
            writeln!(f, "\n{}: {}", case.name, case.about)?;
            let own = self.found.cells.iter().filter(|cell| cell.case == case.name);
            let rows = own.map(|cell| {
                let ns = |pick: fn(&super::Latency) -> Option<u64>| {
                    or_dash(cell.latency.as_ref().and_then(pick), |ns| ns.to_string())
                };
                let cells = vec![
                    million(cell.calls_per_s),
                    percent(cell.calls_per_s_moments.cv),
                    million(cell.calls_per_s_p1),
                    million(cell.calls_per_s_p01),
                    million(cell.calls_per_s_moments.min),
                    ns(|l| Some(l.p50_ns)),
                    ns(|l| l.p99_ns),
                    ns(|l| l.p999_ns),
                    ns(|l| l.p9999_ns),
                    format!("{:.1}", mib(cell.rss_first_bytes)),
                    format!("{:.1}", mib(cell.rss_last_bytes)),
                    format!("{:+.1} %", cell.rss_drift * 100.0),
                ];
                (cell.arm.as_str(), cells)
            });
            table(f, head, rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_pattern_has_digits_too() {
        let shown = [138.64e6, 4.375e6, 0.334e6, 4_420.0, 61.4, 0.0].map(million);
        assert_eq!(shown, ["138.64", "4.38", "0.334", "0.00442", "0.0000614", "0.00"]);
    }
}
