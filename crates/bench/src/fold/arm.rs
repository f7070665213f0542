//! The two sides: pages that the pager folds by itself, and pages that the kernel swaps to zram.

use crate::control::Peer;
use crate::launch::{plain, Folding};
use crate::worker::{Heap, HeapRequest, Job, PagedOut, Presence, Program, Worker};
use crate::zram::Zram;
use anyhow::{ensure, Context, Result};
use memfold_pager::activity::Activity;
use memfold_pager::codec::CODEC_NUMBERS;
use memfold_pager::config::Setting;
use memfold_sys::{time, PAGE_SIZE};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// One side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// The pager.
    Folded,
    /// Swap to zram, with this compressor.
    Zram(String),
}

/// What became of the pages of a heap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Folded {
    /// Pages that went.
    pub pages: usize,
    /// CPU time of the threads that did it, ns.
    pub cpu_ns: u64,
    /// Memory that the pages take now, with all that it takes to keep them; bytes.
    pub memory_bytes: u64,
    /// What only the pager tells; `None` for zram.
    pub pager: Option<Inside>,
}

/// What the pager tells of its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inside {
    /// Time by the clock, by [`Activity`], ns.
    pub activity_ns: [u64; Activity::COUNT],
    /// Pages by the number of the codec that compressed them ([`memfold_pager::codec::CodecId::bits`]).
    pub pages_by_codec: [u64; CODEC_NUMBERS],
    /// Pages that went and came back because they do not shrink.
    pub incompressible: u64,
}

/// How long the pager may take.
const PATIENCE: Duration = Duration::from_secs(120);

impl Arm {
    /// Its name in results.
    pub(super) fn name(&self) -> String {
        match self {
            Arm::Folded => "memfold".into(),
            Arm::Zram(algorithm) => format!("zram {algorithm}"),
        }
    }

    /// Has the pages of a file folded, and compares them afterwards.
    pub(super) fn fold(&self, file: &Path, bytes: usize, program: &Program) -> Result<Folded> {
        let job = Job::Heap(Heap { file: file.to_owned() });
        match self {
            Arm::Folded => by_the_pager(&job, program),
            Arm::Zram(algorithm) => by_zram(&job, bytes, algorithm, program),
        }
    }
}

fn by_the_pager(job: &Job, program: &Program) -> Result<Folded> {
    let folding = Folding::new(&program.library)?
        .set(Setting::StartAt, "0")
        .set(Setting::ColdAge, "1s")
        .set(Setting::MaxCpu, "100%");
    let mut worker = Worker::start(program, job, |command| folding.apply(command))?;
    let pages: usize = worker.receive()?;
    let peer = Peer::of(folding.control_dir(), worker.pid(), PATIENCE)?;
    peer.await_folded(PATIENCE)?;
    let before = peer.await_count(PATIENCE)?;
    let after = peer.await_settled(PATIENCE)?;
    let presence: Presence = worker.ask(&HeapRequest::Look)?;
    ensure!(after.pages.lost == 0, "the pager reports {} lost pages", after.pages.lost);
    went(presence.away, pages - (after.pages.incompressible as usize).min(pages))?;
    compare(&mut worker)?;
    let inside = Inside {
        activity_ns: std::array::from_fn(|n| after.activity_ns[n] - before.activity_ns[n]),
        pages_by_codec: std::array::from_fn(|n| after.pages_by_codec[n] - before.pages_by_codec[n]),
        incompressible: after.pages.incompressible - before.pages.incompressible,
    };
    Ok(Folded {
        pages: (after.pages.evicted - before.pages.evicted) as usize,
        cpu_ns: after.costs.cpu_background_ns - before.costs.cpu_background_ns,
        memory_bytes: after.sizes.overhead_bytes,
        pager: Some(inside),
    })
}

fn by_zram(job: &Job, bytes: usize, algorithm: &str, program: &Program) -> Result<Folded> {
    // Dropped after the worker, whose end leaves nothing to bring back.
    let zram = Zram::start(2 * bytes as u64, algorithm)?;
    let mut worker = Worker::start(program, job, plain)?;
    let pages: usize = worker.receive()?;
    let out: PagedOut = worker.ask(&HeapRequest::PageOut)?;
    let before = time::thread_cpu();
    if algorithm.contains('+') {
        zram.recompress()?;
    }
    let again = time::thread_cpu().since(before).0;
    let usage = zram.usage()?;
    // The page map says that they are in swap; the device must say that it is the swap they are in.
    let stored = (usage.original / PAGE_SIZE as u64) as usize;
    let held = out.presence.swapped.min(stored);
    went(held, pages).with_context(|| format!("{:?}, and {stored} pages on the device", out.presence))?;
    compare(&mut worker)?;
    Ok(Folded { pages: held, cpu_ns: out.cpu_ns + again, memory_bytes: usage.memory, pager: None })
}

fn went(away: usize, pages: usize) -> Result<()> {
    ensure!(2 * away >= pages, "only {away} of {pages} pages went; it would not show what that costs");
    Ok(())
}

fn compare(worker: &mut Worker) -> Result<()> {
    let wrong: usize = worker.ask(&HeapRequest::Verify)?;
    ensure!(wrong == 0, "{wrong} pages were wrong when they came back");
    Ok(())
}
