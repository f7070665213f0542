//! Does any byte get lost? Threads do to their memory all that programs do, while a saboteur has everything evicted
//! again and again, and every byte is compared with a model.
//!
//! What it is: random but seeded sequences of writing, reading, mapping, unmapping, remapping, protecting, dropping,
//! making huge, allocating, freeing, system calls on evicted buffers, threads that come and go, and forks whose children check their
//! copy of everything. The pager, if there is one, is the one that the process was started with.
//!
//! What it is not: a benchmark, nor a proof of anything when nothing was evicted: that is reported as a failure.
//!
//! Invariants: contents are a function of the seed and a tag that is never used twice, so stale, lost, torn and
//! misplaced pages all show; each thread draws from its own sequence, so a seed and a number of operations repeat what
//! each thread does, though not how they interleave; a thread that stands still for [`STANDSTILL`] is a failure.

mod actor;
mod area;
mod blocks;
mod calls;
mod children;
mod churn;
mod findings;
mod forker;
mod invocation;
mod operations;
mod pieces;
mod report;
mod ring;
mod saboteur;
mod shared;
mod syscalls;
mod tally;
#[cfg(test)]
mod tests;

pub use findings::Mismatch;
pub use report::{PagerReport, VerifyReport};

use crate::arguments::{count, whole};
use crate::control::Peer;
use crate::Unsupported;
use anyhow::{ensure, Context, Result};
use memfold_pager::control::Mode;
use saboteur::Saboteur;
use serde::Serialize;
use shared::Shared;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Check every byte while threads do all that programs do to memory and everything is evicted again and again.
///
/// Verifies the pager that it is started with: `memfold run -- memfold bench verify`. Started alone, it is a plain run.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold run -- memfold bench verify        does any byte get lost?",
])]
pub struct Options {
    /// How long.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(1..=86_400 * 30))]
    pub seconds: u64,
    /// Stop each thread after so many operations.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count(256))]
    pub threads: usize,
    /// Where all sequences and contents begin; the same seed repeats what each thread does.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Kinds of work to leave out: raw, remap, unmap, drop, protect, huge, heap, calls, fork, churn, sabotage.
    #[arg(long, value_name = "WORK,..", value_delimiter = ',')]
    pub without: Vec<Work>,
    /// Change the pager's settings and limits at random as well; `make torture` does so for hours.
    #[arg(long)]
    pub torture: bool,
}

memfold_experiment::named! {
    /// A kind of work that can be left out.
    pub enum Work, "kind of work" {
        /// `munmap`, `mremap`, `madvise` and mapping over by `syscall(2)` or by the bare instruction, past libc's functions.
        Raw = "raw",
        /// `mremap`.
        Remap = "remap",
        /// `munmap` and mapping over.
        Unmap = "unmap",
        /// `MADV_DONTNEED` and `MADV_FREE`.
        Drop = "drop",
        /// `mprotect`.
        Protect = "protect",
        /// Huge pages: `MADV_HUGEPAGE`, `MADV_NOHUGEPAGE` and `MADV_COLLAPSE`.
        Huge = "huge",
        /// malloc and its kin.
        Heap = "heap",
        /// `read`, `write`, their vector forms and other system calls on evicted buffers, io_uring's among them.
        Calls = "calls",
        /// `fork`.
        Fork = "fork",
        /// Short-lived threads.
        Churn = "churn",
        /// Requests to the pager.
        Sabotage = "sabotage",
    }
}

/// A thread that finishes no operation for so long counts as hung.
pub const STANDSTILL: Duration = Duration::from_secs(360);

/// Runs the verification in this process.
///
/// # Errors
/// [`Unsupported`] if the pager was asked for and is off; otherwise if the run could not be set up. What the run finds
/// wrong is in the report, not an error.
pub fn run(options: &Options) -> Result<VerifyReport> {
    ensure!(options.threads > 0, "at least one thread is needed");
    let start = Instant::now();
    let peer = own_pager()?;
    let shared = Shared::new(options, start)?;
    let asked = std::thread::scope(|scope| {
        let saboteur = peer
            .as_ref()
            .filter(|_| shared.does(Work::Sabotage))
            .map(|peer| scope.spawn(|| Saboteur::new(&shared, peer).run()));
        for number in 0..options.threads {
            let shared = &shared;
            scope.spawn(move || operations::run(shared, number));
        }
        if shared.does(Work::Fork) {
            scope.spawn(|| forker::run(&shared));
        }
        if shared.does(Work::Churn) {
            scope.spawn(|| churn::run(&shared));
        }
        watch(&shared);
        saboteur.map_or(0, |thread| thread.join().unwrap_or(0))
    });
    shared.check_everything();
    let pager = peer.map(|peer| PagerReport::of(&peer, asked)).transpose()?;
    if let Some(pager) = &pager {
        if pager.mode == Mode::Off.name() {
            return Err(Unsupported(format!("the pager is off: {}", pager.reason)).into());
        }
    }
    Ok(VerifyReport::new(options.clone(), &shared, pager))
}

/// The control page of this process, if it was started with the pager on.
fn own_pager() -> Result<Option<Peer>> {
    let on = std::env::var("MEMFOLD_PAGER").is_ok_and(|value| value == "on");
    let Some(directory) = std::env::var_os("MEMFOLD_CONTROL_DIR").filter(|_| on) else { return Ok(None) };
    let peer = Peer::of(Path::new(&directory), std::process::id(), Duration::from_secs(5))
        .context("MEMFOLD_PAGER is on, but this process is not folded")?;
    Ok(Some(peer))
}

/// Waits for the threads, and ends the process if one stands still: a hung thread can be waited for, not stopped.
fn watch(shared: &Shared) {
    let mut seen: Vec<(u64, Instant)> = shared.beats.iter().map(|_| (0, Instant::now())).collect();
    loop {
        sleep(Duration::from_millis(50));
        let mut working = false;
        for (beat, (last, since)) in shared.beats.iter().zip(&mut seen) {
            let now = beat.count.load(Relaxed);
            if beat.done.load(Relaxed) {
                continue;
            }
            working = true;
            if now != *last {
                (*last, *since) = (now, Instant::now());
            } else if since.elapsed() > STANDSTILL {
                let _ = writeln!(
                    io::stderr(),
                    "memfold verify: {} has finished nothing for {STANDSTILL:?}, after {now} operations, the last \
                     begun one being {:?} (seed {}): it hangs",
                    beat.name,
                    beat.doing(),
                    shared.options.seed
                );
                // SAFETY: ends the process at once; nothing that could hang is run.
                unsafe { libc::_exit(1) };
            }
        }
        if !working {
            shared.stop.store(true, Relaxed);
            return;
        }
    }
}
