//! The page that shows an experiment: for a browser and for paper.

use super::summary::{cost, memory, skipped, unfolded};
use super::Report;
use anyhow::Result;
use memfold_plot::{Block, Plot};

/// The page.
pub(super) fn of(report: &Report, plots: &[Plot]) -> Result<memfold_plot::Report> {
    let mut blocks = vec![
        Block::Heading("Memory".into()),
        Block::Table(memory(report)),
        Block::Heading("Cost".into()),
        Block::Table(cost(report)),
        Block::Text(
            "Every program read all its data back at the end of each run and found them right. Ratios are medians over pairs of \
             runs of the same repeat; aggregate.csv has their 95 % intervals, which need six pairs."
                .into(),
        ),
    ];
    blocks.extend(unfolded(report).into_iter().chain(skipped(report)).map(Block::Text));
    blocks.push(Block::Heading("Plots".into()));
    blocks.extend(plots.iter().map(Plot::block));
    blocks.push(Block::Heading("What it ran on".into()));
    let versions: Vec<String> =
        report.found.versions.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    blocks.push(Block::Plain(versions.join("\n")));
    blocks.push(Block::Plain(serde_json::to_string_pretty(&report.manifest)?));
    Ok(memfold_plot::Report {
        title: "Real programs, plain and folded".into(),
        summary: format!("{}. Folded is `memfold run` with its default options.", report.sentence()),
        blocks,
    })
}
