//! The page that shows an experiment: for a browser and for paper.

use super::charts::Drawn;
use super::summary::{cost, memory, skipped, unfolded, Cells};
use super::Report;
use anyhow::Result;
use memfold_plot::{Block, Table};

/// The page.
pub(super) fn of(report: &Report, drawn: &[Drawn]) -> Result<memfold_plot::Report> {
    let table = |Cells { head, rows }: Cells, caption: &str| {
        Block::Table(Table { caption: caption.into(), head, rows })
    };
    let mut blocks = vec![
        Block::Heading("Memory".into()),
        table(
            memory(report),
            "Memory of all processes of a program, MiB, when its heap was built and so long after: the proportional share (PSS), in which \
             what processes share counts once; how much less that is than the plain run's at the last moment; then the sums of VmRSS \
             and RssAnon, in which it counts once for each process; and how many pages the pager evicted.",
        ),
        Block::Heading("Cost".into()),
        table(
            cost(report),
            "What stays in use: units a second at work in the first and in the last seconds of the idle phase, the last beside the plain \
             run's, and the 99th percentile of a unit. Building the heap, reading all of it back, and the exit; CPU time of all \
             processes over the whole run, the pager's among it; waits for the pager.",
        ),
        Block::Text(
            "Every program read all its data back at the end of each run and found them right. Ratios are medians over pairs of \
             runs of the same repeat; aggregate.csv has their 95 % intervals, which need six pairs."
                .into(),
        ),
    ];
    blocks.extend(unfolded(report).into_iter().chain(skipped(report)).map(Block::Text));
    blocks.push(Block::Heading("Plots".into()));
    blocks.extend(drawn.iter().map(|drawn| Block::chart(drawn.chart.as_ref(), drawn.caption)));
    blocks.push(Block::Heading("What it ran on".into()));
    let versions: Vec<String> =
        report.versions.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    blocks.push(Block::Plain(versions.join("\n")));
    blocks.push(Block::Plain(serde_json::to_string_pretty(&report.manifest)?));
    Ok(memfold_plot::Report {
        title: "Real programs, plain and folded".into(),
        summary: format!("{}. Folded is `memfold run` with its default options.", report.sentence()),
        blocks,
    })
}
