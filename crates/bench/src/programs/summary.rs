//! The figures as text: what the command prints and `summary.txt` holds.

use super::figures::{label, Beside};
use super::{Arm, Kind, Report};
use std::fmt;

const MIB: f64 = (1 << 20) as f64;

/// A table's cells, the first row its head.
pub(super) struct Cells {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Memory at each moment.
pub(super) fn memory(report: &Report) -> Cells {
    let moments: Vec<String> =
        std::iter::once("loaded".to_owned()).chain(report.options.moments().into_iter().map(label)).collect();
    let mut head = vec!["program".to_owned(), "arm".to_owned()];
    head.extend(moments.iter().map(|moment| format!("PSS {moment}")));
    head.extend(["less, %", "VmRSS", "RssAnon", "pages evicted"].map(str::to_owned));
    let last = moments.last().cloned().unwrap_or_default();
    let rows = places(report).map(|(program, arm)| {
        let mib = |figure: String| number(report.median(program, arm, &figure).map(|b| b / MIB), 1);
        let less = report.beside(program, arm, &format!("pss_bytes_{last}"));
        let mut row = vec![program.name().to_owned(), arm.name().to_owned()];
        row.extend(moments.iter().map(|moment| mib(format!("pss_bytes_{moment}"))));
        row.push(number(less.map(|b| (1.0 - b.ratio.median) * 100.0), 1));
        row.extend(["resident", "anonymous"].map(|kind| mib(format!("{kind}_bytes_{last}"))));
        row.push(number(report.median(program, arm, "pages_evicted"), 0));
        row
    });
    Cells { head, rows: rows.collect() }
}

/// What folding costs the program and the machine.
pub(super) fn cost(report: &Report) -> Cells {
    let head = [
        "program",
        "arm",
        "units/s",
        "at the end",
        "ratio",
        "p99 us",
        "at the end",
        "load s",
        "verify s",
        "exit s",
        "CPU s",
        "stall, %",
    ];
    let rows = places(report).map(|(program, arm)| {
        let of = |figure: &str, by: f64, decimals| {
            number(report.median(program, arm, figure).map(|value| value / by), decimals)
        };
        let ratio = report.beside(program, arm, "hot_units_per_s_end").map(|b| b.ratio.median);
        vec![
            program.name().to_owned(),
            arm.name().to_owned(),
            of("hot_units_per_s_begin", 1.0, 0),
            of("hot_units_per_s_end", 1.0, 0),
            number(ratio, 3),
            of("hot_p99_ns_begin", 1e3, 1),
            of("hot_p99_ns_end", 1e3, 1),
            of("load_s", 1.0, 2),
            of("verify_s", 1.0, 2),
            of("exit_s", 1.0, 3),
            of("cpu_s", 1.0, 2),
            of("stall_pct", 1.0, 3),
        ]
    });
    Cells { head: head.map(str::to_owned).to_vec(), rows: rows.collect() }
}

/// Runs in which memfold folded nothing, with the reason that it gave.
pub(super) fn unfolded(report: &Report) -> Vec<String> {
    let idle = report.runs.iter().filter_map(|run| {
        let folded = run.folded.as_ref().filter(|folded| folded.pages.evicted == 0)?;
        let why = folded.reason.as_deref().unwrap_or("no page was compressed before it ended");
        Some(format!("{}, run {}: nothing was folded: {why}", run.program.name(), run.repeat + 1))
    });
    idle.collect()
}

/// What did not run.
pub(super) fn skipped(report: &Report) -> Vec<String> {
    report.skipped.iter().map(|s| format!("{} was left out: {}", s.program.name(), s.why)).collect()
}

fn places(report: &Report) -> impl Iterator<Item = (Kind, Arm)> + '_ {
    report.programs().flat_map(|program| report.options.arms.iter().map(move |&arm| (program, arm)))
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

impl Report {
    /// An arm's figure beside that of the plain arm.
    pub fn beside(&self, program: Kind, arm: Arm, figure: &str) -> Option<&Beside> {
        self.beside.iter().find(|b| (b.program, b.arm, b.figure.as_str()) == (program, arm, figure))
    }

    /// One sentence on what was done.
    pub(super) fn sentence(&self) -> String {
        format!(
            "{} {} of each arm, interleaved, medians; heaps of about {} MiB, a twentieth of the records in use, in runs of {}, idle for {} s",
            self.options.runs,
            if self.options.runs == 1 { "run" } else { "runs" },
            self.options.bytes >> 20,
            self.options.together,
            self.options.idle_millis as f64 / 1e3
        )
    }
}

/// Writes the summary.
pub(super) fn write(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "real programs, plain and folded  ({}; memory in MiB)", report.sentence())?;
    for Cells { head, rows } in [memory(report), cost(report)] {
        let all: Vec<&Vec<String>> = std::iter::once(&head).chain(&rows).collect();
        let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        writeln!(f)?;
        for row in &all {
            let cells = row.iter().enumerate().map(|(column, cell)| match column {
                0 | 1 => format!("{cell:<0$}", width(column)),
                _ => format!("{cell:>0$}", width(column)),
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
    }
    let notes: Vec<String> = unfolded(report).into_iter().chain(skipped(report)).collect();
    if !notes.is_empty() {
        writeln!(f)?;
    }
    notes.iter().try_for_each(|note| writeln!(f, "{note}"))
}
