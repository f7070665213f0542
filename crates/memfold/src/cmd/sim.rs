//! `memfold sim`: what replacement policies make of a trace.

use crate::trace_file::{bad, TraceOptions};
use crate::{bar, exit, text};
use anyhow::{Context, Result};
use memfold_policy::spec::{self, BadSpec, Spec};
use memfold_sim::curve::{self, Curve, Sample, Sampling};
use memfold_sim::{Plan, Row, Size, Trace};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold sim --trace io.oracleGeneral.bin --policy all --size 1000,10000,10%
  memfold sim --trace io.bin.zst --policy lru,s3fifo:small=0.2 --size 1% --json
  memfold sim --trace io.csv --csv-column 3 --csv-header --policy sieve --size 5000
  memfold sim --trace io.bin --curve 40 --out runs/curves      miss-ratio curves and their plot
  memfold sim --trace huge.zst --curve 40 --sample 8192        the same from 8192 pages (SHARDS)

Exit codes: 0 done, 1 failed, 2 bad usage.";

/// Run replacement policies over a trace of page requests, exactly.
///
/// Each object of the trace counts as one page. The policies are those of the pager's policy crate.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    format: TraceOptions,
    /// Policies, with parameters where they have some (s3fifo:small=0.1), or all.
    #[arg(long, value_name = "P[,P]", default_value = "all")]
    policy: String,
    /// Sizes of the cache: pages, or per cent of the trace's different pages.
    #[arg(long, value_name = "N[,N%]", default_value = "1%,10%")]
    size: String,
    /// Miss-ratio curves over so many sizes, from a thousandth of the pages to all, or over those of --size.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(..=1000))]
    curve: Option<u16>,
    /// Look only at that share of the pages (below 1), or at so many pages (constant memory), picked by a hash.
    #[arg(long, value_name = "RATE|PAGES", requires = "curve", value_parser = sampling)]
    sample: Option<Sampling>,
    /// Also write the results as JSON and CSV into this directory, and a curve's plot as SVG and PNG.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Results {
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Curves {
    requests: u64,
    /// Different pages; estimated where only a sample was looked at.
    pages: usize,
    /// The share of the pages that was looked at.
    rate: f64,
    curves: Vec<Curve>,
}

/// A row of `curves.csv`.
#[derive(Serialize)]
struct CurveRow<'a> {
    policy: &'a str,
    size: usize,
    miss_ratio: f64,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for a policy, a size or a trace that cannot be used.
pub fn run(args: Args) -> Result<ExitCode> {
    let (policies, sizes) = (policies(&args.policy)?, sizes(&args.size)?);
    let requests = args.format.open(&args.trace)?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out)
            .map_err(|error| exit::usage(format!("--out {}: {error}", out.display())))?;
    }
    let reading = bar::bar(0, args.json);
    reading.set_message("reading the trace");
    let wrong = |error| bad(&args.trace, error);
    let sample = match args.sample {
        Some(sampling) => curve::sample(requests, sampling).map_err(wrong)?,
        None => Sample::whole(Trace::number(requests).map_err(wrong)?),
    };
    reading.finish_and_clear();
    let universe = sample.universe();
    let sizes = match args.curve {
        Some(count) if count > 0 => curve::sizes(universe, count.into()),
        _ => resolve(&sizes, universe)?,
    };
    let plan = Plan { policies, sizes };
    let progress = bar::bar((plan.policies.len() * plan.sizes.len()) as u64, args.json);
    let done = || progress.inc(1);
    if args.curve.is_none() {
        let results = Results { results: memfold_sim::simulate(&sample.trace, &plan, done)? };
        progress.finish_and_clear();
        if let Some(out) = &args.out {
            write(out, "results", &results, &results.results)?;
        }
        return show(args.json, &results, || table(&sample.trace, &results.results));
    }
    let curves = sample.curves(&plan, done)?;
    progress.finish_and_clear();
    let curves = Curves { requests: sample.requests, pages: universe, rate: sample.rate, curves };
    if let Some(out) = &args.out {
        write(out, "curves", &curves, &curves.rows())?;
        let name = args.trace.file_name().map_or_else(Default::default, |name| name.to_string_lossy());
        memfold_plot::save(&curve::chart(&curves.curves, &format!("Miss ratio: {name}")), out, "curves")?;
    }
    show(args.json, &curves, || curves.table())
}

fn show(json: bool, results: &impl Serialize, table: impl FnOnce() -> String) -> Result<ExitCode> {
    if json {
        text::print_json(results)?;
    } else {
        text::print(&table())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes `NAME.json` and `NAME.csv`.
fn write(out: &Path, name: &str, all: &impl Serialize, rows: &[impl Serialize]) -> Result<()> {
    let path = |extension: &str| out.join(format!("{name}.{extension}"));
    let json = serde_json::to_string_pretty(all)? + "\n";
    std::fs::write(path("json"), json).with_context(|| format!("cannot write {}", path("json").display()))?;
    let to = std::fs::File::create(path("csv"));
    memfold_stats::write_csv(to.with_context(|| format!("cannot write {}", path("csv").display()))?, rows)?;
    Ok(())
}

fn sampling(text: &str) -> Result<Sampling, String> {
    let wrong = || {
        "a share of the pages, such as 0.01, or a number of pages from 64, such as 8192, is needed".to_owned()
    };
    match text.parse::<f64>().map_err(|_| wrong())? {
        rate if rate > 0.0 && rate < 1.0 => Ok(Sampling::Rate(rate)),
        pages if pages >= 64.0 && pages.fract() == 0.0 && pages < 1e9 => Ok(Sampling::Pages(pages as usize)),
        _ => Err(wrong()),
    }
}

/// The policies of a list.
///
/// # Errors
/// With exit code 2 for one that there is not.
pub(crate) fn policies(list: &str) -> Result<Vec<Spec>> {
    let list = if list == "all" { spec::names().collect::<Vec<_>>().join(",") } else { list.to_owned() };
    let mut specs: Vec<String> = Vec::new();
    for part in list.split(',') {
        // A parameter behind a comma belongs to the policy before it.
        match specs.last_mut() {
            Some(last) if part.contains('=') && !part.contains(':') => *last += &format!(",{part}"),
            _ => specs.push(part.to_owned()),
        }
    }
    let bad = |spec: &str, error| {
        exit::usage(match error {
            BadSpec::Name(name) => {
                let known: Vec<_> = spec::names().collect();
                format!("there is no policy {name:?}; there are {}", known.join(", "))
            }
            BadSpec::Parameter(name) => format!("--policy {spec}: the policy has no parameter {name:?}"),
            BadSpec::Value(setting) => {
                format!("--policy {spec}: {setting:?} is no number in the parameter's range")
            }
        })
    };
    specs.iter().map(|spec| Spec::parse(spec).map_err(|error| bad(spec, error))).collect()
}

fn sizes(list: &str) -> Result<Vec<Size>> {
    let size = |text: &str| {
        Size::parse(text).ok_or_else(|| {
            exit::usage(format!(
                "--size {text:?}: give pages, at least 1, or per cent above 0 up to 100, such as 10%"
            ))
        })
    };
    list.split(',').map(size).collect()
}

/// The sizes in pages, each once, in the order in which they were given.
fn resolve(sizes: &[Size], universe: usize) -> Result<Vec<usize>> {
    let mut seen = HashSet::new();
    let pages = sizes.iter().map(|size| size.pages(universe));
    pages
        .filter(|&size| seen.insert(size))
        .map(|size| match size > universe {
            true => Err(exit::usage(format!(
                "--size {size} is more than the {universe} different pages of the trace: nothing would ever be evicted"
            ))),
            false => Ok(size),
        })
        .collect()
}

fn table(trace: &Trace, rows: &[Row]) -> String {
    let mut out = format!("{} requests of {} pages\n\n", trace.requests(), trace.universe());
    let width = rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(10);
    out += &format!(
        "{:<width$} {:>10} {:>12} {:>10} {:>14}\n",
        "policy", "size", "misses", "ratio", "M requests/s"
    );
    for row in rows {
        out += &format!(
            "{:<width$} {:>10} {:>12} {:>10.4} {:>14.1}\n",
            row.policy,
            row.size,
            row.misses,
            row.miss_ratio,
            row.requests_per_second / 1e6
        );
    }
    out
}

impl Curves {
    fn rows(&self) -> Vec<CurveRow<'_>> {
        let rows = self.curves.iter().flat_map(|curve| {
            let row = |point: &curve::Point| (point.size, point.miss_ratio);
            curve.points.iter().map(row).map(|(size, miss_ratio)| CurveRow {
                policy: &curve.policy,
                size,
                miss_ratio,
            })
        });
        rows.collect()
    }

    fn table(&self) -> String {
        let about = if self.rate < 1.0 {
            format!(", estimated from {:.3} %", self.rate * 100.0)
        } else {
            String::new()
        };
        let mut out = format!("{} requests of {} pages{about}\n\n{:>10}", self.requests, self.pages, "size");
        // Writing into a string cannot fail.
        let width = |curve: &Curve| curve.policy.len().max(9);
        for curve in &self.curves {
            let _ = write!(out, " {:>1$}", curve.policy, width(curve));
        }
        for (row, first) in self.curves.first().map_or(&[][..], |curve| &curve.points).iter().enumerate() {
            let _ = write!(out, "\n{:>10}", first.size);
            for curve in &self.curves {
                let _ = write!(out, " {:>1$.4}", curve.points[row].miss_ratio, width(curve));
            }
        }
        out + "\n"
    }
}
