//! The plots of an experiment.

use super::results::Results;
use super::single_run::Run;
use super::Arm;
use crate::workload::Kind;
use memfold_plot::{ccdf, Axis, Bars, Chart, Line, Lines, Panels, Point, Scatter, Series, Unit, Value};
use memfold_stats::Histogram;

/// An arm and its runs of one workload.
type ArmRuns<'a> = (Arm, Vec<&'a Run>);

/// A plot with the name of its files and what it shows.
pub(super) struct Drawn {
    pub(super) name: &'static str,
    pub(super) caption: &'static str,
    pub(super) chart: Box<dyn Chart>,
}

/// Every plot for which there are runs.
pub(super) fn all(results: &Results) -> Vec<Drawn> {
    let mut drawn = vec![
        draw(
            "throughput_ratio_by_workload",
            "Units a second beside the baseline's run of the same repeat: median of the pairs and its 95 % interval, which \
             needs six pairs. An interval that contains 1 is no difference.",
            throughput_ratio(results),
        ),
        draw(
            "memory_saved_vs_throughput",
            "What an arm saves of the baseline's memory, over what it costs in throughput. The best place is the upper right.",
            saved_vs_throughput(results),
        ),
        draw(
            "resident_over_time",
            "Memory that the process takes, in zram too, over the first repeat.",
            by_workload(results, "Memory over time", resident_over_time),
        ),
        draw(
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

fn pager(results: &Results) -> Vec<Drawn> {
    let mut drawn = vec![
        draw(
            "pager_daemon_cpu_breakdown",
            "CPU time of folding: looking for cold pages and compressing them, and bringing them back. In the arm daemon it is \
             that of the agent in the process and of the daemon's thread that serves it.",
            of_pager(results, "CPU of the pager", percent("share of one CPU").not_negative(), &CPU),
        ),
        draw(
            "fault_missing_latency_p95_p99",
            "How long a thread waits for a page that the pager has. 0: it never had to.",
            of_pager(results, "Wait on a missing page", nanos("time of a wait"), &WAITS),
        ),
        draw(
            "restore_latency_p95_p99",
            "The pager's own work on such a page: look-up, decompression, mapping.",
            of_pager(results, "Work on a restore", nanos("time of a restore"), &RESTORES),
        ),
        draw(
            "pager_activity_counts",
            "Whether the pager had anything to do, and how much. Each compressed page was evicted.",
            of_pager(results, "What the pager did", Axis::logarithmic("pages or faults in a run"), &ACTIVITY),
        ),
        draw(
            "pager_cpu_vs_throughput_ratio",
            "What the pager takes of the machine, over what it costs the program.",
            cpu_vs_throughput(results),
        ),
    ];
    if results.record.options.workloads.contains(&Kind::MmapChurn) {
        drawn.push(draw(
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
const CHURN: [(&str, &str); 5] = [
    ("pager_range_add_msgs", "ranges added"),
    ("pager_range_del_msgs", "ranges removed"),
    ("pager_faults_first_touch", "first touches served"),
    ("pager_faults_missing", "missing faults"),
    ("pager_compress_success", "pages compressed"),
];

fn draw(name: &'static str, caption: &'static str, chart: impl Chart + 'static) -> Drawn {
    Drawn { name, caption, chart: Box::new(chart) }
}

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

fn names(results: &Results) -> Vec<String> {
    results.record.options.workloads.iter().map(|workload| workload.name().to_owned()).collect()
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
    let series = others(results).into_iter().map(|arm| Series {
        name: arm.name().into(),
        values: results
            .record
            .options
            .workloads
            .iter()
            .map(|&workload| ratio(results, workload, arm))
            .collect(),
    });
    Bars {
        title: "Throughput beside the baseline".into(),
        axis: Axis::ratio("units a second, over the baseline's"),
        groups: names(results),
        series: series.collect(),
        stacked: false,
    }
}

/// A drawing for each arm that folds, all with the same axis. Parts of a whole stand on each other.
fn of_pager(results: &Results, title: &str, axis: Axis, metrics: &'static [(&str, &str)]) -> Panels {
    let workloads = &results.record.options.workloads;
    let bars = |arm: &Arm, axis: Axis| Bars {
        title: format!("{title}, arm {}", arm.name()),
        axis,
        groups: names(results),
        series: metrics
            .iter()
            .map(|(metric, name)| Series {
                name: (*name).into(),
                values: workloads.iter().map(|&workload| value(results, workload, *arm, metric)).collect(),
            })
            .collect(),
        stacked: metrics == CPU,
    };
    let arms = results.folding();
    let reach: Vec<(f64, f64)> = arms.iter().filter_map(|arm| bars(arm, axis.clone()).reaches()).collect();
    let low = reach.iter().map(|ends| ends.0).fold(f64::INFINITY, f64::min);
    let high = reach.iter().map(|ends| ends.1).fold(f64::NEG_INFINITY, f64::max);
    let axis = if reach.is_empty() { axis } else { axis.range(low, high) };
    Panels { panels: arms.iter().map(|arm| bars(arm, axis.clone()).svg()).collect() }
}

fn mmap_churn(results: &Results) -> Bars {
    let arms = results.folding();
    let series = arms.iter().map(|&arm| Series {
        name: arm.name().into(),
        values: CHURN.iter().map(|(metric, _)| value(results, Kind::MmapChurn, arm, metric)).collect(),
    });
    Bars {
        title: "mmap_churn: mappings beside faults".into(),
        axis: Axis::logarithmic("count in a run"),
        groups: CHURN.iter().map(|(_, name)| (*name).to_owned()).collect(),
        series: series.collect(),
        stacked: false,
    }
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

/// One drawing for each workload, of its runs by arm.
fn by_workload(results: &Results, title: &str, draw: fn(&str, &[ArmRuns<'_>]) -> Lines) -> Panels {
    let options = &results.record.options;
    let panel = |&workload: &Kind| {
        let runs =
            |arm: Arm| results.runs.iter().filter(move |r| (r.workload, r.arm) == (workload, arm)).collect();
        let arms: Vec<ArmRuns<'_>> = options.arms.iter().map(|&arm| (arm, runs(arm))).collect();
        draw(&format!("{title}: {}", workload.name()), &arms).svg()
    };
    Panels { panels: options.workloads.iter().map(panel).collect() }
}

fn resident_over_time(title: &str, arms: &[ArmRuns<'_>]) -> Lines {
    let line = |(arm, runs): &ArmRuns<'_>| Line {
        name: arm.name().into(),
        points: runs.first().map_or(Vec::new(), |run| {
            run.samples.iter().map(|s| (s.at_ms * 1e6, s.footprint() as f64)).collect()
        }),
    };
    Lines {
        title: title.into(),
        x: Axis::linear("time").unit(Unit::Nanos),
        y: Axis::linear("memory").unit(Unit::Bytes).not_negative(),
        lines: arms.iter().map(line).collect(),
    }
}

fn latencies(title: &str, arms: &[ArmRuns<'_>]) -> Lines {
    let pooled: Vec<Histogram> = arms
        .iter()
        .map(|(_, runs)| {
            let mut all = Histogram::default();
            runs.iter().for_each(|run| all.merge(&run.latencies));
            all
        })
        .collect();
    let named: Vec<(String, &Histogram)> =
        arms.iter().zip(&pooled).map(|((arm, _), all)| (arm.name().to_owned(), all)).collect();
    ccdf(title, nanos("time of a unit"), &named)
}
