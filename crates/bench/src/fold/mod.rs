//! What it costs to fold a page, by step, beside the codecs alone and swap to zram: `memfold bench fold`.
//!
//! A worker holds the pages of a heap and does nothing. The pager folds them, by itself and with the settings that it has by default,
//! but that a second makes a page cold, that there is no limit on its CPU time, and that it begins at once; or the kernel swaps them to zram
//! when the worker asks for it. Of each the CPU time of the threads that do it is taken, and in the end every page is compared.
//!
//! What it is not: a measure of touches (`bench fault`), nor of when pages go.
//!
//! Invariants: the arms run in turns, round after round; a wrong page ends the run, and so does a round in which less than half of the
//! pages went.

mod alone;
mod arm;
mod blocks;
mod heaps;
mod report;

pub use alone::Alone;
pub use arm::{Folded, Inside};
pub use blocks::Blocks;
pub use heaps::Heap;
pub use report::{Found, HeapReport, Row, Run, Skipped, Summary};

use crate::arguments::{count, region};
use crate::course::{turns, Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::Program;
use crate::{backing, Unsupported};
use anyhow::{ensure, Context, Result};
use arm::Arm;
use memfold_pager::activity::Activity;
use memfold_pager::codec::Page;
use memfold_sys::PAGE_SIZE;
use serde::Serialize;
use std::io::Write;
use tempfile::NamedTempFile;

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
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// What all random choices are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The heaps: made of text, json, pointers, floats, random or mixed data, or of a program as in `memfold bench programs`, or a file of
    /// pages (a path with a / in it).
    #[arg(long, value_name = "H,..", value_delimiter = ',', default_value = "json,text,pointers,mixed")]
    pub heaps: Vec<Heap>,
    /// Most that is taken of each heap.
    #[arg(long = "size", value_name = "BYTES", default_value = "64M", value_parser = region)]
    pub bytes: usize,
    /// Rounds of each arm on each heap.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1_000))]
    pub rounds: usize,
    /// Compressors of zram to run beside, each alone or with a second one behind a +; or none.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "lz4,zstd")]
    pub zram: Vec<String>,
    /// Try zstd on blocks of several pages too, of these lengths.
    #[arg(long = "block", value_name = "BYTES,..", value_delimiter = ',', value_parser = region)]
    pub blocks: Vec<usize>,
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-fold-1");

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        self.zram.retain(|name| name != "none");
        Ok(())
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        ensure!(!self.heaps.is_empty(), "a heap is needed");
        let (mut heaps, mut skipped) = (Vec::new(), Vec::new());
        let mut arms = vec![Arm::Folded];
        arms.extend(self.zram.iter().cloned().map(Arm::Zram));
        let mut course = Course::of(self.heaps.len(), progress);
        for heap in &self.heaps {
            let what = heap.name();
            heaps.extend(course.run(&what, || match heap.pages(self.bytes, self.seed) {
                Err(error) if error.is::<Unsupported>() => {
                    skipped.push(Skipped { what: what.clone(), why: format!("{error:#}") });
                    Ok(None)
                }
                pages => measure(heap, &pages?, self, &mut arms, &mut skipped, program).map(Some),
            })?);
        }
        course.over("done");
        ensure!(
            !heaps.is_empty(),
            Unsupported(skipped.iter().map(|left| left.why.as_str()).collect::<Vec<_>>().join("; "))
        );
        Ok(Found { steps: Activity::NAMES, heaps, skipped })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", report.found.rows())
    }
}

/// One heap: the codecs alone, then the arms in turns. An arm that this machine turns out not to have is given up, with its reason.
fn measure(
    heap: &Heap,
    pages: &[u8],
    options: &Options,
    arms: &mut Vec<Arm>,
    skipped: &mut Vec<Skipped>,
    program: &Program,
) -> Result<HeapReport> {
    let mut file = NamedTempFile::new().context("no place for the pages of a heap")?;
    file.write_all(pages)?;
    let all: Vec<&Page> = pages.chunks_exact(PAGE_SIZE).filter_map(|page| page.try_into().ok()).collect();
    let is_repeated = |page: &Page| page.chunks_exact(8).all(|word| word == &page[..8]);
    let different: Vec<&Page> = all.iter().copied().filter(|page| !is_repeated(page)).collect();
    let (mut alone, mut runs) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        alone.push(alone::measure(&different)?);
        for arm in turns(arms, round).collect::<Vec<_>>() {
            backing::back(2 * pages.len() as u64);
            match arm.fold(file.path(), pages.len(), program) {
                Err(error) if error.is::<Unsupported>() && arm != Arm::Folded => {
                    skipped.push(Skipped { what: arm.name(), why: format!("{error:#}") });
                    arms.retain(|other| *other != arm);
                }
                folded => {
                    let folded = folded.with_context(|| arm.name())?;
                    runs.push(Run { arm: arm.name(), round, folded });
                }
            }
        }
    }
    let blocks = blocks::measure(&different, &options.blocks)?;
    let (pages, same_value) = (all.len(), all.len() - different.len());
    Ok(HeapReport::new(heap.name(), pages, same_value, alone::medians(&alone), blocks, runs))
}
