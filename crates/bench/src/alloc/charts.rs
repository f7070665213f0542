//! The results as plots.

use super::{Case, Cell, Options, BASE};
use crate::experiment::Report;
use memfold_experiment::runs::pooled;
use memfold_plot::{ccdf, Axis, Bars, Chart, Panels, Plot, Unit, Value};
use memfold_stats::Histogram;

/// The suite's.
pub(super) fn all(report: &Report<Options>) -> Vec<Plot> {
    let bars = |title: &str, what: &str, figure: fn(&Cell) -> Value| {
        let others = report.found.arms.iter().filter(|arm| arm.name != BASE);
        Bars::of(
            title,
            Axis::ratio(format!("{what}, over glibc's")),
            report.options.measures.cases.iter().map(|case| (case.name, case)),
            others.map(|arm| (arm.name.as_str(), arm)),
            |case, arm| report.found.cell(case.name, &arm.name).map(figure),
        )
    };
    let throughput = bars("Throughput beside glibc", "calls a second", |cell| cell.calls_over_glibc.into());
    let memory = bars("Memory beside glibc", "most resident memory", |cell| cell.rss_over_glibc.into());
    vec![
        Plot::new("throughput", "", throughput),
        Plot::new("memory", "", memory),
        Plot::new("latency", "", latencies(report)),
    ]
}

/// A drawing for each case of which steps were sampled.
fn latencies(report: &Report<Options>) -> Panels {
    let panel = |case: &Case| {
        let of = |arm: &str| pooled(&report.found.runs, (case.name, arm), |run| &run.step_ns);
        let all: Vec<(String, Histogram)> =
            report.found.arms.iter().map(|arm| (arm.name.clone(), of(&arm.name))).collect();
        let named: Vec<(String, &Histogram)> =
            all.iter().map(|(name, steps)| (name.clone(), steps)).collect();
        let axis = Axis::logarithmic("time of a step").unit(Unit::Nanos);
        ccdf(format!("Latency: {}", case.name), axis, &named).svg()
    };
    let sampled =
        |case: &&Case| report.found.cells.iter().any(|cell| cell.case == case.name && cell.latency.is_some());
    Panels { panels: report.options.measures.cases.iter().filter(sampled).map(panel).collect() }
}
