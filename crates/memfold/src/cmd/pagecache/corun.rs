//! `memfold pagecache corun`: tenants side by side.

use super::{limit, watched, Common, EXAMPLES};
use crate::text;
use ::memfold_pagecache::corun::{self, Options, Remedy};
use ::memfold_pagecache::workload::Workload;
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::ValueEnum;
use std::path::PathBuf;

/// What all tenants share at full size.
const CACHE_LIMIT: u64 = 2 << 30;

/// The least that a scale leaves of it: fio itself takes a part.
const LEAST_CACHE_LIMIT: u64 = 64 << 20;

/// Run a victim alone, beside neighbours, and under each remedy, in memory cgroups of a stated size.
///
/// Without --isolation and --neighbor-* every remedy is tried. Two more runs part the mechanisms: a neighbour that only
/// evicts, and one that evicts as fast and writes back.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The workload that is watched; see `memfold pagecache list`.
    #[arg(long, value_name = "NAME")]
    victim: String,
    /// The workloads beside it.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', required = true)]
    neighbor: Vec<String>,
    /// Isolation by the kernel, each one a row of the result; none: no remedy but those that are named.
    #[arg(long, value_name = "HOW,..", value_delimiter = ',')]
    isolation: Vec<Isolation>,
    /// The neighbours by direct I/O.
    #[arg(long)]
    neighbor_direct: bool,
    /// The neighbours by RWF_DONTCACHE.
    #[arg(long)]
    neighbor_dontcache: bool,
    /// The neighbours with POSIX_FADV_DONTNEED behind them.
    #[arg(long)]
    neighbor_fadvise: bool,
    /// The neighbours without read-ahead (POSIX_FADV_RANDOM).
    #[arg(long)]
    neighbor_readahead: bool,
    /// The neighbours with write-back after each 64 writes (sync_file_range).
    #[arg(long)]
    neighbor_writeback: bool,
    /// Leave the mechanisms out.
    #[arg(long)]
    no_mechanisms: bool,
    /// Memory of all tenants together, page cache included [default: 2G times the scale, at least 64M].
    #[arg(long, value_name = "BYTES", value_parser = limit)]
    cache_limit: Option<u64>,
    /// Of it, what separate limits and protection give the victim [default: its file and 24M, between 1/4 and 3/4].
    #[arg(long, value_name = "BYTES", value_parser = limit)]
    victim_share: Option<u64>,
    /// MiB a second that throttling leaves the neighbours.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 20))]
    io_rate: u64,
    /// MiB a second at which both mechanisms evict.
    #[arg(long, value_name = "MIB", default_value_t = 96, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 20))]
    mechanism_rate: u64,
    /// How often every arm runs; medians count.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=99))]
    runs: usize,
    /// The directory of the results; it must be empty or not be there.
    #[arg(short, long, value_name = "DIR", default_value = "corun_results")]
    out: PathBuf,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Isolation {
    /// Nothing.
    None,
    /// A memory cgroup with a limit of its own for each.
    Memcg,
    /// memory.min and memory.low for the victim (cgroup version 2).
    MemcgMin,
    /// The neighbours' requests throttled.
    Io,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let scale = self.common.scale();
        let adapted = |name: &String| -> Result<Vec<Workload>> {
            let named = self.common.config.named(std::slice::from_ref(name))?;
            Ok(named.iter().map(|workload| self.common.adapted(workload)).collect())
        };
        let neighbors: Vec<Vec<Workload>> = self.neighbor.iter().map(adapted).collect::<Result<_>>()?;
        let options = Options {
            victim: adapted(&self.victim)?.swap_remove(0),
            neighbors: neighbors.into_iter().flatten().collect(),
            remedies: self.remedies(),
            mechanisms: !self.no_mechanisms,
            runs: self.runs,
            scale,
            cache_limit: self.cache_limit.unwrap_or(scale.of(CACHE_LIMIT).max(LEAST_CACHE_LIMIT)),
            victim_share: self.victim_share,
            io_rate: self.io_rate << 20,
            mechanism_rate: self.mechanism_rate << 20,
            directory: self.common.dir.clone(),
            out: self.out.clone(),
        };
        let results =
            watched(self.common.verbose, |program, stop, tell| corun::run(&options, program, stop, tell))?;
        if self.common.json {
            return text::print_json(&results);
        }
        text::print(&results.to_string())?;
        text::say(format_args!("raw results, summary.txt and report.html are in {}", self.out.display()));
        Ok(())
    }

    fn remedies(&self) -> Vec<Remedy> {
        let isolated = |how: Isolation| self.isolation.contains(&how);
        let wanted = |remedy: &Remedy| match remedy {
            Remedy::Memcg => isolated(Isolation::Memcg),
            Remedy::MemcgMin => isolated(Isolation::MemcgMin),
            Remedy::Io => isolated(Isolation::Io),
            Remedy::Direct => self.neighbor_direct,
            Remedy::Dontcache => self.neighbor_dontcache,
            Remedy::Fadvise => self.neighbor_fadvise,
            Remedy::Readahead => self.neighbor_readahead,
            Remedy::Writeback => self.neighbor_writeback,
        };
        let named: Vec<Remedy> = Remedy::ALL.into_iter().filter(wanted).collect();
        if named.is_empty() && self.isolation.is_empty() {
            return Remedy::ALL.to_vec();
        }
        named
    }
}
