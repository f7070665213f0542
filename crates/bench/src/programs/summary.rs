//! The figures as text: what the command prints and `summary.txt` holds.

use super::figures::{label, Beside};
use super::{Arm, Kind, Report};
use memfold_experiment::text::{cells, columns, mib, number};
use memfold_plot::Table;
use std::fmt;

/// Memory at each moment.
pub(super) fn memory(report: &Report) -> Table {
    let moments: Vec<String> =
        std::iter::once("loaded".to_owned()).chain(report.options.moments().into_iter().map(label)).collect();
    let mut head = cells(["program", "arm"]);
    head.extend(moments.iter().map(|moment| format!("PSS {moment}")));
    head.extend(cells(["less, %", "VmRSS", "RssAnon", "pages evicted"]));
    let last = moments.last().cloned().unwrap_or_default();
    let rows = places(report).map(|(program, arm)| {
        let mib = |figure: String| number(report.median(program, arm, &figure).map(mib), 1);
        let less = report.beside(program, arm, &format!("pss_bytes_{last}"));
        let mut row = cells([program.name(), arm.name()]);
        row.extend(moments.iter().map(|moment| mib(format!("pss_bytes_{moment}"))));
        row.push(number(less.map(|b| (1.0 - b.ratio.median) * 100.0), 1));
        row.extend(["resident", "anonymous"].map(|kind| mib(format!("{kind}_bytes_{last}"))));
        row.push(number(report.median(program, arm, "pages_evicted"), 0));
        row
    });
    let caption = "Memory of all processes of a program, MiB, when its heap was built and so long after: the proportional share (PSS), in which \
             what processes share counts once; how much less that is than the plain run's at the last moment; then the sums of VmRSS \
             and RssAnon, in which it counts once for each process; and how many pages the pager evicted.";
    Table { caption: caption.into(), head, rows: rows.collect() }
}

/// What folding costs the program and the machine.
pub(super) fn cost(report: &Report) -> Table {
    let head = [
        "program",
        "arm",
        "units/s",
        "at the end",
        "ratio",
        "p99 us",
        "at the end",
        "load s",
        "collect s",
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
            of("collect_s", 1.0, 2),
            of("verify_s", 1.0, 2),
            of("exit_s", 1.0, 3),
            of("cpu_s", 1.0, 2),
            of("stall_pct", 1.0, 3),
        ]
    });
    let caption = "What stays in use: units a second at work in the first and in the last seconds of the idle phase, the last beside the plain \
             run's, and the 99th percentile of a unit. Building the heap, a collection or a snapshot (with --collect), reading all of it back, and the exit; CPU time of all \
             processes over the whole run, the pager's among it; waits for the pager.";
    Table::of(caption, head, rows)
}

/// Runs in which memfold folded nothing, with the reason that it gave.
pub(super) fn unfolded(report: &Report) -> Vec<String> {
    let idle = report.found.runs.iter().filter_map(|run| {
        let folded = run.folded.as_ref().filter(|folded| folded.pages.evicted == 0)?;
        let why = folded.reason.as_deref().unwrap_or("no page was compressed before it ended");
        Some(format!("{}, run {}: nothing was folded: {why}", run.program.name(), run.repeat + 1))
    });
    idle.collect()
}

/// What did not run.
pub(super) fn skipped(report: &Report) -> Vec<String> {
    report.found.skipped.iter().map(|s| format!("{} was left out: {}", s.program.name(), s.why)).collect()
}

fn places(report: &Report) -> impl Iterator<Item = (Kind, Arm)> + '_ {
    report.programs().flat_map(|program| report.options.arms.iter().map(move |&arm| (program, arm)))
}

impl Report {
    /// An arm's figure beside that of the plain arm.
    pub fn beside(&self, program: Kind, arm: Arm, figure: &str) -> Option<&Beside> {
        self.found.beside.iter().find(|b| (b.program, b.arm, b.figure.as_str()) == (program, arm, figure))
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
    for Table { head, rows, .. } in [memory(report), cost(report)] {
        write!(f, "\n{}", columns(std::iter::once(&head).chain(&rows), 2))?;
    }
    let notes: Vec<String> = unfolded(report).into_iter().chain(skipped(report)).collect();
    if !notes.is_empty() {
        writeln!(f)?;
    }
    notes.iter().try_for_each(|note| writeln!(f, "{note}"))
}
