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
mod heaps;
mod report;

pub use alone::Alone;
pub use arm::{Folded, Inside};
pub use heaps::Heap;
pub use report::{FoldReport, HeapReport, Row, Run, Skipped, Summary};

use crate::course::turns;
use crate::course::{Advance, Progress};
use crate::manifest::Manifest;
use crate::worker::Program;
use crate::{backing, Unsupported};
use anyhow::{ensure, Context, Result};
use arm::Arm;
use memfold_pager::codec::Page;
use memfold_sys::PAGE_SIZE;
use serde::Serialize;
use std::io::Write;
use tempfile::NamedTempFile;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The heaps.
    pub heaps: Vec<Heap>,
    /// Most that is taken of each, bytes.
    pub bytes: usize,
    /// Rounds of each arm on each heap.
    pub rounds: usize,
    /// Compressors of zram to run beside; a second one behind a `+` compresses again what the first did. None leaves zram out.
    pub zram: Vec<String>,
    /// What heaps are made from.
    pub seed: u64,
}

/// Runs the experiment.
///
/// # Errors
/// [`Unsupported`] where nothing can be folded; otherwise when a heap is not to be had, a page is wrong or hardly one went.
pub fn run(options: &Options, program: &Program, progress: Progress<'_>) -> Result<FoldReport> {
    ensure!(options.rounds > 0 && !options.heaps.is_empty(), "a round and a heap are needed");
    let (mut heaps, mut skipped) = (Vec::new(), Vec::new());
    let mut arms = vec![Arm::Folded];
    arms.extend(options.zram.iter().cloned().map(Arm::Zram));
    let total = options.heaps.len() as u64;
    for (done, heap) in options.heaps.iter().enumerate() {
        let what = heap.name();
        progress(Advance { done: done as u64, total, what: &what });
        let pages = match heap.pages(options.bytes, options.seed) {
            Err(error) if error.is::<Unsupported>() => {
                skipped.push(Skipped { what, why: format!("{error:#}") });
                continue;
            }
            pages => pages?,
        };
        heaps.push(measure(heap, &pages, options, &mut arms, &mut skipped, program).context(what)?);
    }
    progress(Advance { done: total, total, what: "done" });
    ensure!(
        !heaps.is_empty(),
        Unsupported(skipped.iter().map(|left| left.why.as_str()).collect::<Vec<_>>().join("; "))
    );
    Ok(FoldReport::new(options.clone(), Manifest::gather(), heaps, skipped))
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
    Ok(HeapReport::new(heap.name(), all.len(), all.len() - different.len(), alone::medians(&alone), runs))
}
