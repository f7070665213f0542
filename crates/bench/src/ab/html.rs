//! The page that shows an experiment: for a browser and for paper.

use super::metrics::Metrics;
use super::results::Results;
use super::Arm;
use crate::workload::Kind;
use memfold_experiment::text::{cells, mib, number};
use memfold_plot::{Block, Plot, Report, Table};

/// The page.
pub(super) fn of(results: &Results, plots: &[Plot]) -> Report {
    let options = &results.record.options;
    let mut blocks = vec![
        Block::Heading("Figures".into()),
        Block::Table(figures(results)),
        Block::Text(
            "Throughput is the median over pairs of runs of the same repeat, with its 95 % interval; there is an \
             interval from six pairs on, and a difference only where it excludes 1. Saved is the baseline's memory minus \
             the arm's, store, tables and zram included, as means over the whole run."
                .into(),
        ),
    ];
    if !results.folding().is_empty() {
        blocks.push(Block::Heading("The pager".into()));
        blocks.push(Block::Table(pager(results)));
    }
    blocks.push(Block::Heading("Plots".into()));
    blocks.extend(plots.iter().map(Plot::block));
    blocks.push(Block::Heading("What it ran on".into()));
    blocks.push(Block::Table(machine(results)));
    for &workload in &options.workloads {
        blocks.push(Block::Heading(format!("Every metric: {}", workload.name())));
        blocks.push(Block::Table(everything(results, workload)));
    }
    blocks.push(Block::Text("Medians; aggregate.csv has their spread, all_runs_long.csv every run.".into()));
    Report {
        title: "Workloads with and without the pager".into(),
        summary: format!(
            "{} runs of {:.1} s in each arm ({}), interleaved; {} MiB a workload; memory counts as cold after {} ms. \
             {} of {} runs are finished.",
            options.runs,
            options.measures.millis as f64 / 1e3,
            options.arms.iter().map(|arm| arm.name()).collect::<Vec<_>>().join(", "),
            options.measures.bytes >> 20,
            options.measures.cold_millis,
            results.finished,
            options.plan().len(),
        ),
        blocks,
    }
}

fn figures(results: &Results) -> Table {
    let mib = |bytes: Option<f64>| number(bytes.map(mib), 1);
    let rows = results.throughput.iter().map(|row| {
        let own = |metric: &str| results.median(row.workload, row.arm, metric);
        let base = |metric: &str| results.median(row.workload, Arm::Baseline, metric);
        vec![
            row.workload.name().to_owned(),
            row.arm.name().to_owned(),
            row.ratio.to_string(),
            mib(base("footprint_mean_bytes")),
            mib(own("footprint_mean_bytes")),
            format!("{} %", number(own("saved_pct_of_resident"), 1)),
            number(base("unit_p99_ns").map(|ns| ns / 1e3), 1),
            number(own("unit_p99_ns").map(|ns| ns / 1e3), 1),
        ]
    });
    let head = [
        "workload",
        "arm",
        "throughput over baseline",
        "baseline, MiB",
        "arm, MiB",
        "saved",
        "baseline unit p99, us",
        "arm unit p99, us",
    ];
    Table::of("Each arm beside the baseline; medians.", head, rows)
}

fn pager(results: &Results) -> Table {
    const COLUMNS: [(&str, &str, f64, usize); 12] = [
        ("pager_daemon_cpu_pct_total", "CPU, %", 1.0, 2),
        ("pager_bg_cpu_pct", "background, %", 1.0, 2),
        ("pager_fault_cpu_pct", "faults, %", 1.0, 2),
        ("pager_fault_missing_p99_ns", "wait p99, us", 1e3, 1),
        ("pager_restore_wall_p99_ns", "restore p99, us", 1e3, 1),
        ("pager_compress_success", "pages compressed", 1.0, 0),
        ("pager_faults_missing", "missing faults", 1.0, 0),
        ("pager_restore_success", "pages restored", 1.0, 0),
        ("folded_pct_of_cold", "folded of cold, %", 1.0, 0),
        ("half_of_cold_folded_s", "half of cold folded after, s", 1.0, 1),
        ("pager_store_pct_of_evicted", "store of evicted, %", 1.0, 0),
        ("stall_pct", "stall, %", 1.0, 3),
    ];
    let arms = results.folding();
    let places = results
        .record
        .options
        .workloads
        .iter()
        .flat_map(|&workload| arms.iter().map(move |&arm| (workload, arm)));
    let rows = places.map(|(workload, arm)| {
        let cells = COLUMNS.iter().map(|(metric, _, by, decimals)| {
            number(results.median(workload, arm, metric).map(|v| v / by), *decimals)
        });
        self::cells([workload.name(), arm.name()]).into_iter().chain(cells).collect()
    });
    Table {
        caption: "The pager's own account; medians over its runs.".into(),
        head: ["workload", "arm"]
            .into_iter()
            .chain(COLUMNS.map(|column| column.1))
            .map(str::to_owned)
            .collect(),
        rows: rows.collect(),
    }
}

fn machine(results: &Results) -> Table {
    let mut rows = Vec::new();
    for session in &results.record.sessions {
        let mut add = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
        add("host", session.host.clone());
        add("kernel", session.kernel.clone());
        add("CPU", format!("{} x {}", session.cpus, session.cpu));
        add("memory", format!("{} MiB", session.memory_bytes >> 20));
        add("memfold", format!("{} {}", session.version, session.commit.as_deref().unwrap_or("")));
        add("command", session.command.join(" "));
    }
    Table::of("One group for each call that added runs.", ["", ""], rows)
}

/// Every metric of a workload, with a column for each arm.
fn everything(results: &Results, workload: Kind) -> Table {
    let arms = &results.record.options.arms;
    let rows = Metrics::MEANINGS.iter().filter_map(|(name, meaning)| {
        let medians: Vec<_> = arms.iter().map(|&arm| results.median(workload, arm, name)).collect();
        // What no arm has would be an empty row.
        medians.iter().any(Option::is_some).then(|| {
            let cells = medians.into_iter().map(|median| match median {
                Some(value) if value.fract() == 0.0 || value.abs() >= 1e5 => format!("{value:.0}"),
                value => number(value, 3),
            });
            let name = std::iter::once((*name).to_owned());
            name.chain(cells).chain(std::iter::once(meaning.trim().to_owned())).collect()
        })
    });
    let head = arms.iter().map(|arm| arm.name());
    Table {
        caption: String::new(),
        head: std::iter::once("metric")
            .chain(head)
            .chain(std::iter::once("meaning"))
            .map(str::to_owned)
            .collect(),
        rows: rows.collect(),
    }
}
