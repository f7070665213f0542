//! `memfold pagecache run`: each workload by itself.

use super::{limit, watched, Common, EXAMPLES};
use crate::{exit, text};
use ::memfold_pagecache::job::Access;
use ::memfold_pagecache::run::{self, Limit, Options};
use anyhow::Result;
use clap::ValueEnum;
use std::path::PathBuf;

/// Where results go if nothing else is said.
pub(super) const RESULTS: &str = "fairness_results";

/// What the cache may hold at full size: half of the larger test files, eight times the smaller ones.
const CACHE_LIMIT: u64 = 8 << 30;

/// Run workloads through the page cache and past it, one after the other.
///
/// The cache is dropped before each run: the whole cache as root, otherwise the test file's pages. Test files are made
/// once and used again; `clean` removes them. Under --scale and --quick, workloads run in a memory cgroup, so that
/// large files do not fit into the cache of a large machine.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Workloads, see `memfold pagecache list`, or all.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The directory of the results; results of other workloads in it are kept.
    #[arg(short, long, value_name = "DIR", default_value = RESULTS)]
    out: PathBuf,
    /// Ways to reach the files.
    #[arg(long, value_name = "MODE,..", value_delimiter = ',', default_value = "cached,direct,dontcache")]
    modes: Vec<Mode>,
    /// Memory of each run with its page cache, such as 512M, or none [default: none at full size, else 8G times the scale].
    #[arg(long, value_name = "BYTES", value_parser = limit_or_none)]
    cache_limit: Option<Limit>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Through the page cache.
    Cached,
    /// Past it (O_DIRECT).
    Direct,
    /// Through it, leaving nothing there (RWF_DONTCACHE), where the kernel has it.
    Dontcache,
}

impl Args {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        let scale = self.common.scale();
        let workloads = self.common.config.named(&self.names)?;
        let mut accesses: Vec<Access> = self.modes.iter().map(|mode| mode.access()).collect();
        accesses.sort();
        accesses.dedup();
        let by_scale = if scale.is_full() { Limit::None } else { Limit::Wanted(scale.of(CACHE_LIMIT)) };
        let options = Options {
            workloads: workloads.iter().map(|workload| self.common.adapted(workload)).collect(),
            scale,
            accesses,
            directory: self.common.dir.clone(),
            out: self.out.clone(),
            limit: self.cache_limit.unwrap_or(by_scale),
        };
        if options.accesses.is_empty() {
            return Err(exit::usage("--modes: name cached, direct or dontcache"));
        }
        let results =
            watched(self.common.verbose, |program, stop, tell| run::run(&options, program, stop, tell))?;
        if self.common.json {
            return text::print_json(&results);
        }
        text::print(&results.to_string())?;
        text::say(format_args!("raw results, summary.txt and report.html are in {}", self.out.display()));
        Ok(())
    }
}

impl Mode {
    fn access(self) -> Access {
        match self {
            Mode::Cached => Access::Cached,
            Mode::Direct => Access::Direct,
            Mode::Dontcache => Access::DontCache,
        }
    }
}

fn limit_or_none(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    limit(text).map(Limit::Needed)
}
