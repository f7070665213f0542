//! The plots of the runs.

use super::Results;
use crate::folder::Drawn;
use crate::outcome::Outcome;
use memfold_plot::{ccdf, Axis, Bars, Chart, Panels, Series, Unit, Value};
use memfold_stats::Histogram;

/// All of them.
pub(super) fn all(results: &Results) -> Vec<Drawn> {
    let nanos = |label: &str| Axis::logarithmic(label).unit(Unit::Nanos);
    vec![
        draw(
            "iops",
            "Requests a second: higher is better.",
            by_mode(results, "IOPS", Axis::logarithmic("requests a second"), |outcome| Some(outcome.iops)),
        ),
        draw(
            "latency",
            "Mean time of a request: lower is better.",
            by_mode(results, "Mean latency", nanos("time of a request"), |outcome| Some(outcome.mean_ns)),
        ),
        draw(
            "latency_p99",
            "The time that one request in a hundred exceeds: lower is better.",
            by_mode(results, "p99 latency", nanos("time of a request"), |outcome| outcome.p99_ns),
        ),
        draw(
            "improvement",
            "What caching gains against direct I/O: +100 % is twice the IOPS, and as far from 0 as -50 %, which is half of them.",
            improvement(results),
        ),
        draw("latency_ccdf", "How large a share of the requests takes at least so long.", latencies(results)),
    ]
}

fn draw(name: &'static str, caption: &str, chart: impl Chart + 'static) -> Drawn {
    Drawn { name, caption: caption.into(), chart: Box::new(chart) }
}

fn groups(results: &Results) -> Vec<String> {
    results.workloads().into_iter().map(str::to_owned).collect()
}

fn value(middle: f64) -> Value {
    Value { middle, interval: None }
}

fn by_mode(results: &Results, title: &str, axis: Axis, of: fn(&Outcome) -> Option<f64>) -> Bars {
    let series = results.accesses().into_iter().map(|access| Series {
        name: access.name().into(),
        values: results
            .workloads()
            .into_iter()
            .map(|workload| results.outcome(workload, access).and_then(of).map(value))
            .collect(),
    });
    Bars { title: title.into(), axis, groups: groups(results), series: series.collect(), stacked: false }
}

fn improvement(results: &Results) -> Bars {
    let of = |workload: &str| results.improvements.iter().find(|one| one.workload == workload);
    let values = results.workloads().into_iter().map(|workload| of(workload).map(|one| value(one.iops_pct)));
    Bars {
        title: "IOPS, cached against direct".into(),
        axis: Axis::change("improvement"),
        groups: groups(results),
        series: vec![Series { name: "improvement of IOPS".into(), values: values.collect() }],
        stacked: false,
    }
}

fn latencies(results: &Results) -> Panels {
    let panel = |workload: &str| {
        let named: Vec<(String, &Histogram)> = results
            .accesses()
            .into_iter()
            .filter_map(|access| {
                Some((access.name().to_owned(), &results.outcome(workload, access)?.latencies))
            })
            .collect();
        ccdf(workload, Axis::logarithmic("time of a request").unit(Unit::Nanos), &named).svg()
    };
    Panels { panels: results.workloads().into_iter().map(panel).collect() }
}
