//! Everything that is written of the raw runs: tables, plots, summary and page.

use super::folder::Folder;
use super::metrics::Metrics;
use super::results::Results;
use super::single_run::Run;
use super::{charts, html};
use crate::output::Output;
use anyhow::Result;

/// Writes tables, plots, summary and page of the runs in a directory, over those that are there.
///
/// # Errors
/// When there are no runs, or a file cannot be written.
pub fn write(folder: &Folder) -> Result<Results> {
    let results = Results::of(folder)?;
    let output = Output::create(folder.path())?;
    output.table("all_runs_long.csv", &header(), results.runs.iter().map(line))?;
    output.rows("aggregate.csv", &results.aggregate)?;
    output.text("aggregate_summary.txt", &results.to_string())?;
    let plots = charts::all(&results);
    output.page(&html::of(&results, &plots), &plots)?;
    Ok(results)
}

fn header() -> Vec<String> {
    let fixed = ["workload", "repeat", "arm"].into_iter();
    fixed.chain(Metrics::MEANINGS.iter().map(|(name, _)| *name)).map(str::to_owned).collect()
}

fn line(run: &Run) -> Vec<String> {
    let fixed = [run.workload.name().to_owned(), run.repeat.to_string(), run.arm.name().to_owned()];
    let figures =
        run.metrics.values().into_iter().map(|(_, value)| value.map_or(String::new(), |v| v.to_string()));
    fixed.into_iter().chain(figures).collect()
}
