//! `memfold sim`: what replacement policies make of a trace.

use crate::{bar, exit, text};
use anyhow::Result;
use clap::ValueEnum;
use policy::replace::{self, BadSpec, Spec};
use serde::Serialize;
use sim::trace::Format;
use sim::{Plan, Row, Size, Trace};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold sim --trace io.oracleGeneral.bin --policy all --size 1000,10000,10%
  memfold sim --trace io.bin --policy lru,s3fifo:small=0.2 --size 1% --json
  memfold sim --trace io.csv --csv-column 3 --csv-header --policy sieve --size 5000

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
    /// How the trace is written; csv with --csv-column.
    #[arg(long, value_enum, default_value_t = Kind::OracleGeneral)]
    format: Kind,
    /// Read CSV, with the object in this column, counted from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    csv_column: Option<u16>,
    /// The character between columns.
    #[arg(long, default_value_t = ',')]
    csv_separator: char,
    /// The first line names the columns.
    #[arg(long)]
    csv_header: bool,
    /// Policies, with parameters where they have some (s3fifo:small=0.1), or all.
    #[arg(long, value_name = "P[,P]", default_value = "all")]
    policy: String,
    /// Sizes of the cache: pages, or per cent of the trace's different pages.
    #[arg(long, value_name = "N[,N%]", default_value = "1%,10%")]
    size: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    /// libCacheSim's binary records of 24 bytes.
    #[value(name = "oracleGeneral")]
    OracleGeneral,
    /// Text; see --csv-column.
    Csv,
}

#[derive(Serialize)]
struct Results {
    results: Vec<Row>,
}

/// Runs the command.
///
/// # Errors
/// With exit code 2 for a policy, a size or a trace that cannot be used.
pub fn run(args: Args) -> Result<ExitCode> {
    let plan = Plan { policies: policies(&args.policy)?, sizes: sizes(&args.size)? };
    let format = match (args.format, args.csv_column) {
        (Kind::OracleGeneral, None) => Format::OracleGeneral,
        (_, column) => Format::Csv {
            column: column.unwrap_or(1).into(),
            separator: args.csv_separator,
            header: args.csv_header,
        },
    };
    let trace = Trace::open(&args.trace, format)
        .map_err(|error| exit::usage(format!("the trace {}: {error}", args.trace.display())))?;
    for &size in &plan.sizes {
        if size.pages(&trace) > trace.universe {
            return Err(exit::usage(format!(
                "--size {} is more than the {} different pages of the trace: nothing would ever be evicted",
                size.pages(&trace),
                trace.universe
            )));
        }
    }
    let progress = bar::bar((plan.policies.len() * plan.sizes.len()) as u64, args.json);
    let results = Results { results: sim::simulate(&trace, &plan, || progress.inc(1)) };
    progress.finish_and_clear();
    if args.json {
        text::print_json(&results)?;
    } else {
        text::print(&table(&trace, &results.results))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn policies(list: &str) -> Result<Vec<Spec>> {
    let list = if list == "all" { replace::names().collect::<Vec<_>>().join(",") } else { list.to_owned() };
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
                let known: Vec<_> = replace::names().collect();
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

fn table(trace: &Trace, rows: &[Row]) -> String {
    let mut out = format!("{} requests of {} pages\n\n", trace.pages.len(), trace.universe);
    out +=
        &format!("{:<10} {:>10} {:>12} {:>10} {:>14}\n", "policy", "size", "misses", "ratio", "M requests/s");
    for row in rows {
        out += &format!(
            "{:<10} {:>10} {:>12} {:>10.4} {:>14.1}\n",
            row.policy,
            row.size,
            row.misses,
            row.miss_ratio,
            row.requests_per_second / 1e6
        );
    }
    out
}
