//! `memfold bench fold`: what it costs to fold a page, by step.

use super::{count, program, region, with_bar, Reporting};
use ::memfold_bench::fold::{self, Heap, Options};
use anyhow::Result;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  memfold bench fold                                 made heaps, beside zram with lz4 and zstd
  memfold bench fold --heaps python3,redis,node      heaps of programs, taken when they are built
  memfold bench fold --heaps ./pages --zram none     the pages of a file, without zram
  memfold bench fold --zram lz4,lz4+zstd             zram that compresses again
  memfold bench fold --block 4K,16K,64K              what larger blocks would save, and cost a touch
  memfold bench fold --json | jq '.heaps[].arms'     for programs

zram needs root; without it, or without a compressor in the kernel, that arm is left out with a line
that says why. So is a program that is not installed.

Exit codes: 0 done and every page came back right, 1 failed, 2 bad usage, 3 nothing can be folded here.";

/// Find what it costs to fold a page, by step, beside the codecs alone and swap to zram.
///
/// A program holds the pages of a heap and is idle. All CPU time of those who fold is counted: of the pager's threads, or of the
/// thread that has the kernel swap. What the codecs take alone is measured on the same pages, by the number of pages that each compressed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    reporting: Reporting,
    /// The heaps: made of text, json, pointers, floats, random or mixed data, or of a program as in `memfold bench programs`, or a file of
    /// pages (a path with a / in it).
    #[arg(long, value_name = "H,..", value_delimiter = ',', default_value = "json,text,pointers,mixed")]
    heaps: Vec<Heap>,
    /// Most that is taken of each heap.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = region)]
    size: usize,
    /// Rounds of each arm on each heap.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1_000))]
    rounds: usize,
    /// Compressors of zram to run beside, each alone or with a second one behind a +; or none.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "lz4,zstd")]
    zram: Vec<String>,
    /// Try zstd on blocks of several pages too, of these lengths.
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', value_parser = region)]
    block: Vec<usize>,
}

impl Args {
    /// Runs the experiment.
    pub fn run(self) -> Result<ExitCode> {
        let options = Options {
            heaps: self.heaps,
            bytes: self.size,
            rounds: self.rounds,
            zram: self.zram.into_iter().filter(|name| name != "none").collect(),
            blocks: self.block,
            seed: self.reporting.seed,
        };
        let out = self.reporting.prepare()?;
        let report = with_bar(|progress| fold::run(&options, &program()?, progress))?;
        if let Some(out) = &out {
            out.rows("runs.csv", report.rows())?;
        }
        self.reporting.finish(&report, &report.manifest, out.as_ref())
    }
}
