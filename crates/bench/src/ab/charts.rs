//! The plots of an experiment.

use super::results::Results;
use super::single_run::{Foreseen, Sample};
use super::Arm;
use crate::workload::Kind;
use memfold_experiment::runs::{of as runs_of, pooled};
use memfold_plot::{ccdf, Axis, Bars, Chart, Line, Lines, Panels, Plot, Point, Scatter, Unit, Value};
use memfold_stats::Histogram;

/// Every plot for which there are runs.
pub(super) fn all(results: &Results) -> Vec<Plot> {
    let mut drawn = vec![
        Plot::new(
            "throughput_ratio_by_workload",
            "Units a second beside the baseline's run of the same repeat: median of the pairs and its 95 % interval, which \
             needs six pairs. An interval that contains 1 is no difference.",
            throughput_ratio(results),
        ),
        Plot::new(
            "memory_saved_vs_throughput",
            "What an arm saves of the baseline's memory, over what it costs in throughput. The best place is the upper right.",
            saved_vs_throughput(results),
        ),
        Plot::new(
            "resident_over_time",
            "Memory that the process takes, in zram too, over the first repeat.",
            by_workload(results, "Memory over time", resident_over_time),
        ),
        Plot::new(
            "latency_ccdf",
            "How large a share of the units takes at least so long, over all repeats.",
            by_workload(results, "Time of a unit", latencies),
        ),
    ];
    if !results.folding().is_empty() {
        drawn.extend(pager(results));
    }
    drawn
}

fn pager(results: &Results) -> Vec<Plot> {
    let mut drawn = vec![
        Plot::new(
            "pager_daemon_cpu_breakdown",
            "CPU time of folding in the process: looking for cold pages and compressing them, and bringing them back.",
            of_pager(results, "CPU of the pager", percent("share of one CPU").not_negative(), &CPU),
        ),
        Plot::new(
            "fault_missing_latency_p95_p99",
            "How long a thread waits for a page that the pager has. 0: it never had to.",
            of_pager(results, "Wait on a missing page", nanos("time of a wait"), &WAITS),
        ),
        Plot::new(
            "restore_latency_p95_p99",
            "The pager's own work on such a page: look-up, decompression, mapping.",
            of_pager(results, "Work on a restore", nanos("time of a restore"), &RESTORES),
        ),
        Plot::new(
            "pager_activity_counts",
            "Whether the pager had anything to do, and how much. Each compressed page was evicted.",
            of_pager(results, "What the pager did", Axis::logarithmic("pages or faults in a run"), &ACTIVITY),
        ),
        Plot::new(
            "foresight_over_time",
            "Pages that were brought ahead of their touch since the first repeat began, by the touch of others or by time, and what became of \
             them. Samples tell, and stand for eight pages each.",
            by_workload(results, "Foresight", foresight),
        ),
        Plot::new(
            "pager_cpu_vs_throughput_ratio",
            "What the pager takes of the machine, over what it costs the program.",
            cpu_vs_throughput(results),
        ),
    ];
    if results.record.options.workloads.contains(&Kind::MmapChurn) {
        drawn.push(Plot::new(
            "mmap_churn_range_ops_vs_faults",
            "Mappings that came and went, and the faults that the pager had to serve for them.",
            mmap_churn(results),
        ));
    }
    drawn
}

const CPU: [(&str, &str); 2] =
    [("pager_bg_cpu_pct", "finding and compressing"), ("pager_fault_cpu_pct", "serving faults")];
const WAITS: [(&str, &str); 2] =
    [("pager_fault_missing_p95_ns", "p95"), ("pager_fault_missing_p99_ns", "p99")];
const RESTORES: [(&str, &str); 2] =
    [("pager_restore_wall_p95_ns", "p95"), ("pager_restore_wall_p99_ns", "p99")];
const ACTIVITY: [(&str, &str); 3] = [
    ("pager_compress_success", "compressed and evicted"),
    ("pager_faults_missing", "missing faults"),
    ("pager_restore_success", "restored"),
];
/// One of the counts.
type Part = fn(&Foreseen) -> u64;
const FORESEEN: [(&str, Part); 3] = [
    ("predicted", |foreseen| foreseen.predicted),
    ("hit", |foreseen| foreseen.hit),
    ("wasted", |foreseen| foreseen.wasted),
];
const CHURN: [(&str, &str); 5] = [
    ("pager_range_add_msgs", "ranges added"),
    ("pager_range_del_msgs", "ranges removed"),
    ("pager_faults_first_touch", "first touches served"),
    ("pager_faults_missing", "missing faults"),
    ("pager_compress_success", "pages compressed"),
];

fn percent(label: &str) -> Axis {
    Axis::linear(label).unit(Unit::Percent)
}

fn nanos(label: &str) -> Axis {
    Axis::logarithmic(label).unit(Unit::Nanos)
}

fn value(results: &Results, workload: Kind, arm: Arm, metric: &str) -> Option<Value> {
    let row = results
        .aggregate
        .iter()
        .find(|r| (r.workload, r.arm, r.metric.as_str()) == (workload, arm, metric))?;
    Some(Value { middle: row.median, interval: row.low.zip(row.high) })
}

/// The workloads with their names.
fn workloads(results: &Results) -> impl Iterator<Item = (&'static str, Kind)> + '_ {
    results.record.options.workloads.iter().map(|&workload| (workload.name(), workload))
}

/// Arms with their names.
fn named(arms: Vec<Arm>) -> impl Iterator<Item = (&'static str, Arm)> {
    arms.into_iter().map(|arm| (arm.name(), arm))
}

/// The arms that are compared with the baseline.
fn others(results: &Results) -> Vec<Arm> {
    results.record.options.arms.iter().copied().filter(|arm| *arm != Arm::Baseline).collect()
}

fn ratio(results: &Results, workload: Kind, arm: Arm) -> Option<Value> {
    let row = results.throughput.iter().find(|row| (row.workload, row.arm) == (workload, arm))?;
    Some(row.ratio.into())
}

fn throughput_ratio(results: &Results) -> Bars {
    Bars::of(
        "Throughput beside the baseline",
        Axis::ratio("units a second, over the baseline's"),
        workloads(results),
        named(others(results)),
        |workload, &arm| ratio(results, workload, arm),
    )
}

/// A drawing for each arm that folds, all with the same axis. Parts of a whole stand on each other.
fn of_pager(results: &Results, title: &str, axis: Axis, metrics: &'static [(&str, &str)]) -> Panels {
    let bars = |arm: &Arm, axis: Axis| {
        let title = format!("{title}, arm {}", arm.name());
        let metrics_named = metrics.iter().map(|(metric, name)| (*name, *metric));
        let value = |workload, metric: &&str| value(results, workload, *arm, metric);
        Bars { stacked: metrics == CPU, ..Bars::of(title, axis, workloads(results), metrics_named, value) }
    };
    let arms = results.folding();
    let reach: Vec<(f64, f64)> = arms.iter().filter_map(|arm| bars(arm, axis.clone()).reaches()).collect();
    let low = reach.iter().map(|ends| ends.0).fold(f64::INFINITY, f64::min);
    let high = reach.iter().map(|ends| ends.1).fold(f64::NEG_INFINITY, f64::max);
    let axis = if reach.is_empty() { axis } else { axis.range(low, high) };
    Panels { panels: arms.iter().map(|arm| bars(arm, axis.clone()).svg()).collect() }
}

fn mmap_churn(results: &Results) -> Bars {
    Bars::of(
        "mmap_churn: mappings beside faults",
        Axis::logarithmic("count in a run"),
        CHURN.into_iter().map(|(metric, name)| (name, metric)),
        named(results.folding()),
        |metric, &arm| value(results, Kind::MmapChurn, arm, metric),
    )
}

fn points(results: &Results, arms: &[Arm], x: &str) -> Vec<Point> {
    let mut points = Vec::new();
    for (series, &arm) in arms.iter().enumerate() {
        for &workload in &results.record.options.workloads {
            if let (Some(x), Some(y)) = (value(results, workload, arm, x), ratio(results, workload, arm)) {
                points.push(Point { label: workload.name().into(), series, x, y });
            }
        }
    }
    points
}

fn saved_vs_throughput(results: &Results) -> Scatter {
    let arms = others(results);
    Scatter {
        title: "What is saved, and what it costs".into(),
        x: percent("memory saved, of the baseline's").range(0.0, 0.0),
        y: Axis::ratio("throughput, over the baseline's"),
        points: points(results, &arms, "saved_pct_of_resident"),
        series: arms.iter().map(|arm| arm.name().to_owned()).collect(),
    }
}

fn cpu_vs_throughput(results: &Results) -> Scatter {
    let arms = results.folding();
    Scatter {
        title: "CPU of the pager, and throughput".into(),
        x: percent("CPU of the pager, of one CPU").not_negative(),
        y: Axis::ratio("throughput, over the baseline's"),
        points: points(results, &arms, "pager_daemon_cpu_pct_total"),
        series: arms.iter().map(|arm| arm.name().to_owned()).collect(),
    }
}

/// One drawing for each workload.
fn by_workload(results: &Results, title: &str, draw: fn(&Results, String, Kind) -> Lines) -> Panels {
    let panel = |(name, workload)| draw(results, format!("{title}: {name}"), workload).svg();
    Panels { panels: workloads(results).map(panel).collect() }
}

fn resident_over_time(results: &Results, title: String, workload: Kind) -> Lines {
    let line = |(name, arm): (&str, Arm)| Line {
        name: name.into(),
        points: runs_of(&results.runs, (workload, arm)).first().map_or(Vec::new(), |run| {
            run.samples.iter().map(|s| (s.at_ms * 1e6, s.footprint() as f64)).collect()
        }),
    };
    Lines {
        title,
        x: Axis::linear("time").unit(Unit::Nanos),
        y: Axis::linear("memory").unit(Unit::Bytes).not_negative(),
        lines: named(results.record.options.arms.clone()).map(line).collect(),
    }
}

fn foresight(results: &Results, title: String, workload: Kind) -> Lines {
    let arms = results.folding();
    let line = |(arm, (name, part)): (Arm, (&str, Part))| {
        let samples = runs_of(&results.runs, (workload, arm))
            .first()
            .map_or([].as_slice(), |run| run.samples.as_slice());
        let before = samples.first().map_or(0, |sample| part(&sample.foreseen));
        let since = |sample: &Sample| part(&sample.foreseen).saturating_sub(before) as f64;
        Line {
            name: if arms.len() == 1 { name.to_owned() } else { format!("{name}, {}", arm.name()) },
            points: samples.iter().map(|sample| (sample.at_ms * 1e6, since(sample))).collect(),
        }
    };
    Lines {
        title,
        x: Axis::linear("time").unit(Unit::Nanos),
        y: Axis::linear("pages").not_negative(),
        lines: arms.iter().flat_map(|&arm| FORESEEN.map(|part| (arm, part))).map(line).collect(),
    }
}

fn latencies(results: &Results, title: String, workload: Kind) -> Lines {
    let arms = &results.record.options.arms;
    let of = |arm: &Arm| pooled(&results.runs, (workload, *arm), |run| &run.latencies);
    let pooled: Vec<Histogram> = arms.iter().map(of).collect();
    let named: Vec<(String, &Histogram)> =
        arms.iter().map(|arm| arm.name().to_owned()).zip(&pooled).collect();
    ccdf(title, nanos("time of a unit"), &named)
}
