//! What came of the runs, read from their raw results: the comparison, `summary.txt`, plots and the page.

use super::table::{comparison, figures};
use super::{charts, noted_file, Noted};
use crate::fairness::{improvement, improvement_of_less};
use crate::folder::{Folder, Record};
use crate::job::Access;
use crate::outcome::Outcome;
use crate::workload;
use anyhow::{Context, Result};
use memfold_experiment::text::or_dash;
use memfold_plot::{Block, Plot, Report, Table};
use serde::Serialize;
use std::fmt;
use std::fs;

/// One workload in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// The mode.
    pub access: Access,
    /// What was measured.
    pub outcome: Outcome,
    /// What was noted beside it; `None` for raw results that came from elsewhere.
    pub noted: Option<Noted>,
}

/// What caching made better, per cent; negative is worse.
#[derive(Clone, Debug, Serialize)]
pub struct Improvement {
    /// The workload's name.
    pub workload: String,
    /// Requests a second.
    pub iops_pct: f64,
    /// Bandwidth.
    pub bandwidth_pct: f64,
    /// Mean latency.
    pub latency_pct: f64,
    /// 99th percentile of latency.
    pub p99_pct: Option<f64>,
}

/// Everything that a directory of runs says.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where the runs were made.
    pub manifest: Record,
    /// The runs, by workload and mode.
    pub rows: Vec<Row>,
    /// Cached against direct.
    pub improvements: Vec<Improvement>,
}

fn read(folder: &Folder) -> Result<Results> {
    let mut rows = Vec::new();
    let path = folder.path();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let mode = Access::MODES.into_iter().find_map(|access| {
            Some((stem.strip_suffix(access.name())?.strip_suffix('_').filter(|w| !w.is_empty())?, access))
        });
        if let Some((workload, access)) = mode {
            let outcome = Outcome::read(&path.join(&name))?;
            let noted = folder.output().read(&noted_file(workload, access))?;
            rows.push(Row { workload: workload.to_owned(), access, outcome, noted });
        }
    }
    let order = order();
    let place = |row: &Row| order.iter().position(|name| *name == row.workload).unwrap_or(usize::MAX);
    rows.sort_by(|a, b| (place(a), &a.workload, a.access).cmp(&(place(b), &b.workload, b.access)));
    let improvements = rows.chunk_by(|a, b| a.workload == b.workload).filter_map(improved).collect();
    Ok(Results { manifest: folder.record().clone(), rows, improvements })
}

/// The names of the built-in workloads, which come first and in their own order.
fn order() -> Vec<String> {
    let built_in = workload::parse(workload::BUILT_IN).unwrap_or_default();
    built_in.into_iter().map(|workload| workload.name).collect()
}

fn improved(group: &[Row]) -> Option<Improvement> {
    let of = |access: Access| group.iter().find(|row| row.access == access).map(|row| &row.outcome);
    let (cached, direct) = (of(Access::Cached)?, of(Access::Direct)?);
    Some(Improvement {
        workload: group[0].workload.clone(),
        iops_pct: improvement(cached.iops, direct.iops),
        bandwidth_pct: improvement(cached.bytes_per_second, direct.bytes_per_second),
        latency_pct: improvement_of_less(cached.mean_ns, direct.mean_ns),
        p99_pct: cached.p99_ns.zip(direct.p99_ns).map(|(cached, direct)| improvement_of_less(cached, direct)),
    })
}

impl Results {
    /// Reads a directory of runs and writes `summary.txt`, the plots and the page.
    ///
    /// # Errors
    /// When a result is damaged or a file cannot be written.
    pub fn write(folder: &Folder) -> Result<Results> {
        let results = read(folder)?;
        let plots = charts::all(&results);
        folder.output().text("summary.txt", &results.to_string())?;
        folder.output().page(&page(&results, &plots), &plots)?;
        Ok(results)
    }

    /// The workloads in their order.
    pub(super) fn workloads(&self) -> Vec<&str> {
        self.rows.chunk_by(|a, b| a.workload == b.workload).map(|group| group[0].workload.as_str()).collect()
    }

    /// The modes that were measured.
    pub(super) fn accesses(&self) -> Vec<Access> {
        let measured = |access: &Access| self.rows.iter().any(|row| row.access == *access);
        Access::MODES.into_iter().filter(measured).collect()
    }

    /// A result.
    pub(super) fn outcome(&self, workload: &str, access: Access) -> Option<&Outcome> {
        let row = self.rows.iter().find(|row| row.workload == workload && row.access == access)?;
        Some(&row.outcome)
    }

    fn verdict(&self) -> String {
        let names = |gains: bool| {
            let of = self.improvements.iter().filter(|one| (one.iops_pct > 0.0) == gains);
            let text: Vec<String> =
                of.map(|one| format!("{} ({:+.0} %)", one.workload, one.iops_pct)).collect();
            if text.is_empty() {
                "none".to_owned()
            } else {
                text.join(", ")
            }
        };
        format!("Winners of caching, by IOPS: {}.\nLosers: {}.\n", names(true), names(false))
    }

    fn harness(&self) -> Option<f64> {
        let shares = self.rows.iter().filter_map(|row| row.noted.as_ref()).map(|noted| noted.harness_cpu_pct);
        shares.max_by(f64::total_cmp)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", comparison(&self.rows), self.verdict())?;
        if let Some(session) = self.manifest.sessions.last() {
            writeln!(f)?;
            session.notes.iter().try_for_each(|note| writeln!(f, "{note}"))?;
        }
        if let Some(share) = self.harness() {
            writeln!(f, "The harness used at most {share:.2} % of one CPU beside a run.")?;
        }
        Ok(())
    }
}

fn page(results: &Results, plots: &[Plot]) -> Report {
    let figures = results.rows.iter().map(|row| {
        let outcome = &row.outcome;
        let what = [row.workload.clone(), row.access.name().to_owned(), outcome.engine.clone()];
        what.into_iter().chain(figures(outcome)).collect()
    });
    let gains = results.improvements.iter().map(|one| {
        let percent = |value: Option<f64>| or_dash(value, |v| format!("{v:+.1} %"));
        vec![
            one.workload.clone(),
            percent(Some(one.iops_pct)),
            percent(Some(one.bandwidth_pct)),
            percent(Some(one.latency_pct)),
            percent(one.p99_pct),
        ]
    });
    let mut blocks = vec![
        Block::Heading("Figures".into()),
        Block::Table(Table::of(
            "Times in microseconds.",
            ["workload", "mode", "engine", "IOPS", "MiB/s", "mean", "p50", "p99", "p99.9"],
            figures,
        )),
        Block::Heading("What caching makes better".into()),
        Block::Table(Table::of(
            "Cached against direct; negative is worse.",
            ["workload", "IOPS", "bandwidth", "mean latency", "p99 latency"],
            gains,
        )),
        Block::Heading("Plots".into()),
    ];
    blocks.extend(plots.iter().map(Plot::block));
    for session in results.manifest.sessions.iter().rev().take(1) {
        blocks.push(Block::Heading("What it ran on".into()));
        let caption = "The last call that added runs.";
        blocks.push(Block::Table(Table::of(caption, ["", ""], session.rows())));
        blocks.extend(session.notes.iter().map(|note| Block::Text(note.clone())));
    }
    Report {
        title: "Who gains from the page cache, and who pays".into(),
        summary: results.verdict().replace('\n', " "),
        blocks,
    }
}
