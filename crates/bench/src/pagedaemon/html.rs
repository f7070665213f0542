//! The plots and the page of the experiment.

use super::judge::{shown, Judged};
use super::Report;
use crate::output::Output;
use anyhow::Result;
use memfold_plot::{Axis, Bars, Block, Chart, Line, Lines, Panels, Table, Value};

/// Draws everything and writes `report.html`.
pub fn write(report: &Report, output: &Output) -> Result<()> {
    let folder = output.path();
    let mut blocks = vec![Block::Heading("What can be said".into())];
    blocks.extend(report.found.quantities.iter().map(|judged| Block::Text(judged.sentence(&report.options))));
    blocks.push(Block::Text(
        "Each policy is compared with the first by the permutation test of the means of its runs: p is how often runs dealt \
         out at random differ as much. Below 0.05 it is called a real difference; of twenty quantities without any, one would \
         be so called by chance."
            .into(),
    ));
    blocks.push(Block::Heading("Averages".into()));
    blocks.push(Block::Table(averages(report)));
    blocks.push(Block::Heading("Plots".into()));
    for (place, judged) in report.found.quantities.iter().enumerate() {
        let (curve, bars) = (passes(report, place, judged), means(report, judged));
        memfold_plot::save(&curve, folder, &format!("{}_over_passes", judged.quantity.column))?;
        memfold_plot::save(&bars, folder, &format!("{}_average", judged.quantity.column))?;
        let panels = Panels { panels: vec![curve.svg(), bars.svg()] };
        blocks.push(Block::chart(&panels, judged.sentence(&report.options)));
    }
    blocks.push(Block::Heading("What it ran on".into()));
    let manifest = serde_json::to_string_pretty(&report.manifest)?;
    blocks.push(Block::Plain(manifest));
    let page = memfold_plot::Report {
        title: "Page daemons side by side".into(),
        summary: format!(
            "{} runs of each of {}, interleaved; {} MiB may be resident.",
            report.options.runs,
            report.options.policies.join(", "),
            report.options.limit >> 20
        ),
        blocks,
    };
    output.text("report.html", &page.html())
}

fn averages(report: &Report) -> Table {
    let head = std::iter::once("quantity".to_owned());
    let rows = report.found.quantities.iter().map(|judged| {
        let cells = judged.samples.iter().map(|sample| match sample.interval {
            Some(interval) => {
                format!("{} ({} to {})", shown(sample.mean), shown(interval.low), shown(interval.high))
            }
            None => shown(sample.mean),
        });
        std::iter::once(judged.quantity.name.to_owned()).chain(cells).collect()
    });
    Table {
        caption: "Faults, and pages brought ahead, decompressed and compressed, are sums over a run, all others means over its \
                  passes; then means over runs, with their 95 % confidence interval."
            .into(),
        head: head.chain(report.options.policies.iter().cloned()).collect(),
        rows: rows.collect(),
    }
}

/// The first run of each policy, pass by pass.
fn passes(report: &Report, place: usize, judged: &Judged) -> Lines {
    let line = |policy: &String| {
        let run = report.found.runs.iter().find(|run| &run.policy == policy)?;
        Some(Line { name: policy.clone(), points: run.curves[place].clone() })
    };
    Lines {
        title: format!("{}, first run", judged.quantity.name),
        x: Axis::linear("pass"),
        y: Axis::linear(if judged.quantity.column.ends_with("faults") { "faults" } else { "pages" })
            .not_negative(),
        lines: report.options.policies.iter().filter_map(line).collect(),
    }
}

fn means(report: &Report, judged: &Judged) -> Bars {
    let axis = match (judged.quantity.sum, judged.quantity.column.ends_with("faults")) {
        (true, true) => "faults in a run",
        (true, false) => "pages in a run",
        (false, _) => "pages, mean over passes",
    };
    Bars::of(
        format!("{}, {} runs", judged.quantity.name, report.options.runs),
        Axis::linear(axis).not_negative(),
        [(judged.quantity.name, ())],
        judged.samples.iter().map(|sample| (sample.policy.as_str(), sample)),
        |(), sample| {
            let interval = sample.interval.map(|interval| (interval.low, interval.high));
            Some(Value { middle: sample.mean, interval })
        },
    )
}
