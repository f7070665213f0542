//! The plots of the runs.

use super::Results;
use crate::job::Access;
use crate::outcome::Outcome;
use memfold_plot::{ccdf, Axis, Bars, Chart, Panels, Plot, Unit};
use memfold_stats::Histogram;

/// All of them.
pub(super) fn all(results: &Results) -> Vec<Plot> {
    let nanos = |label: &str| Axis::logarithmic(label).unit(Unit::Nanos);
    vec![
        Plot::new(
            "iops",
            "Requests a second: higher is better.",
            by_mode(results, "IOPS", Axis::logarithmic("requests a second"), |outcome| Some(outcome.iops)),
        ),
        Plot::new(
            "latency",
            "Mean time of a request: lower is better.",
            by_mode(results, "Mean latency", nanos("time of a request"), |outcome| Some(outcome.mean_ns)),
        ),
        Plot::new(
            "latency_p99",
            "The time that one request in a hundred exceeds: lower is better.",
            by_mode(results, "p99 latency", nanos("time of a request"), |outcome| outcome.p99_ns),
        ),
        Plot::new(
            "improvement",
            "What caching gains against direct I/O: +100 % is twice the IOPS, and as far from 0 as -50 %, which is half of them.",
            improvement(results),
        ),
        Plot::new("latency_ccdf", "How large a share of the requests takes at least so long.", latencies(results)),
    ]
}

/// The workloads with their names.
fn workloads(results: &Results) -> impl Iterator<Item = (&str, &str)> {
    results.workloads().into_iter().map(|name| (name, name))
}

/// The modes with their names.
fn modes(results: &Results) -> impl Iterator<Item = (&'static str, Access)> {
    results.accesses().into_iter().map(|access| (access.name(), access))
}

fn by_mode(results: &Results, title: &str, axis: Axis, of: fn(&Outcome) -> Option<f64>) -> Bars {
    Bars::of(title, axis, workloads(results), modes(results), |workload, &access| {
        Some(of(results.outcome(workload, access)?)?.into())
    })
}

fn improvement(results: &Results) -> Bars {
    let of = |workload: &str| results.improvements.iter().find(|one| one.workload == workload);
    Bars::of(
        "IOPS, cached against direct",
        Axis::change("improvement"),
        workloads(results),
        [("improvement of IOPS", ())],
        |workload, ()| Some(of(workload)?.iops_pct.into()),
    )
}

fn latencies(results: &Results) -> Panels {
    let panel = |workload: &str| {
        let named: Vec<(String, &Histogram)> = modes(results)
            .filter_map(|(name, access)| {
                Some((name.to_owned(), &results.outcome(workload, access)?.latencies))
            })
            .collect();
        ccdf(workload, Axis::logarithmic("time of a request").unit(Unit::Nanos), &named).svg()
    };
    Panels { panels: results.workloads().into_iter().map(panel).collect() }
}
