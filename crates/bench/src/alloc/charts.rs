//! The results as plots.

use super::soak::SoakReport;
use super::{AllocReport, Cell, BASE};
use anyhow::Result;
use memfold_plot::{ccdf, save, Axis, Bars, Line, Lines, Panels, Series, Unit, Value};
use memfold_stats::Histogram;
use std::path::Path;

/// Draws the suite's plots into `directory`, which must exist.
///
/// # Errors
/// When a file cannot be written.
pub fn draw(report: &AllocReport, directory: &Path) -> Result<()> {
    let over = Axis::ratio("calls a second, over glibc's");
    save(
        &ratios(report, "Throughput beside glibc", over, |cell| cell.calls_over_glibc.into()),
        directory,
        "throughput",
    )?;
    let over = Axis::ratio("most resident memory, over glibc's");
    save(
        &ratios(report, "Memory beside glibc", over, |cell| cell.rss_over_glibc.into()),
        directory,
        "memory",
    )?;
    save(&latencies(report), directory, "latency")
}

fn ratios(report: &AllocReport, title: &str, axis: Axis, of: fn(&Cell) -> Value) -> Bars {
    let cases = &report.options.cases;
    let series = report.arms.iter().filter(|arm| arm.name != BASE).map(|arm| Series {
        name: arm.name.clone(),
        values: cases.iter().map(|case| report.cell(case.name, &arm.name).map(of)).collect(),
    });
    Bars {
        title: title.into(),
        axis,
        groups: cases.iter().map(|case| case.name.to_owned()).collect(),
        series: series.collect(),
        stacked: false,
    }
}

/// A drawing for each case of which steps were sampled.
fn latencies(report: &AllocReport) -> Panels {
    let panel = |case: &super::Case| {
        let pooled = |arm: &str| {
            let mut all = Histogram::default();
            let own = report.runs.iter().filter(|run| (run.case, run.arm.as_str()) == (case.name, arm));
            own.for_each(|run| all.merge(&run.step_ns));
            all
        };
        let all: Vec<(String, Histogram)> =
            report.arms.iter().map(|arm| (arm.name.clone(), pooled(&arm.name))).collect();
        let named: Vec<(String, &Histogram)> =
            all.iter().map(|(name, steps)| (name.clone(), steps)).collect();
        let axis = Axis::logarithmic("time of a step").unit(Unit::Nanos);
        memfold_plot::Chart::svg(&ccdf(format!("Latency: {}", case.name), axis, &named))
    };
    let sampled = |case: &&super::Case| {
        report.cells.iter().any(|cell| cell.case == case.name && cell.latency.is_some())
    };
    Panels { panels: report.options.cases.iter().filter(sampled).map(panel).collect() }
}

impl SoakReport {
    /// Draws throughput and memory over epochs into `directory`, which must exist.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn draw(&self, directory: &Path) -> Result<()> {
        let rate = Axis::linear("calls a second").not_negative();
        save(&self.over_epochs("Throughput", rate, |epoch| epoch.calls_per_s), directory, "soak_throughput")?;
        let memory = Axis::linear("resident memory").unit(Unit::Bytes).not_negative();
        save(&self.over_epochs("Memory", memory, |epoch| epoch.rss_bytes as f64), directory, "soak_memory")
    }

    fn over_epochs(&self, title: &str, y: Axis, figure: fn(&super::soak::Epoch) -> f64) -> Panels {
        let panel = |case: &super::Case| {
            let own = self.cells.iter().filter(|cell| cell.case == case.name);
            let line = |cell: &super::soak::SoakCell| {
                let epochs = self.epochs.iter().filter(|e| (e.case, &e.arm) == (cell.case, &cell.arm));
                Line {
                    name: cell.arm.clone(),
                    points: epochs.map(|epoch| (epoch.epoch as f64, figure(epoch))).collect(),
                }
            };
            let chart = Lines {
                title: format!("{title}: {}", case.name),
                x: Axis::linear("epoch"),
                y: y.clone(),
                lines: own.map(line).collect(),
            };
            memfold_plot::Chart::svg(&chart)
        };
        Panels { panels: self.options.cases.iter().map(panel).collect() }
    }
}
