//! What a touch to an evicted page costs, beside the kernel's own way of doing it: swap to zram.
//!
//! Two workers, one folded and one plain, hold the same data. In turns, round after round, each has its whole region
//! evicted and then touches it, in the same order, timed by the same code; once alone and once with CPU hogs beside it.
//! Only the touching is timed. The hogs run while it lasts, not during eviction.
//!
//! What it is not: a measure of eviction, nor of a real program's stalls.
//!
//! Invariants: a round counts only if at least 99 % of the region was evicted when it began (seen in the page map, by
//! the worker) and what was touched came back from the store (seen in the control page); a wrong word ends the run.

mod arm;
mod report;

pub use arm::Served;
pub use report::{ArmReport, Comparison, Condition, FaultReport, Held, RealTime, Row, Run, Sample};

use crate::manifest::Manifest;
use crate::progress::{Advance, Progress};
use crate::worker::{Order, Program, Round, Touch};
use crate::{hogs::Hogs, process};
use anyhow::{ensure, Result};
use arm::{Arm, Folded, Swapped};
use memfold_stats::Histogram;
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Size of each worker's region, bytes.
    pub bytes: usize,
    /// Rounds of each arm under each condition.
    pub rounds: usize,
    /// CPU hogs in the loaded condition; 0 leaves it out.
    pub hogs: usize,
    /// Whether zram runs beside the pager.
    pub zram: bool,
    /// zram's compressor.
    pub algorithm: String,
    /// CPU that the touching threads are bound to, if any.
    pub pin: Option<usize>,
    /// What contents and orders are made from.
    pub seed: u64,
}

/// The least share of the region, per cent, that must be evicted when a round begins.
const LEAST_EVICTED_PERCENT: usize = 99;

/// Runs the experiment.
///
/// # Errors
/// [`crate::Unsupported`] where folding or zram is not to be had; otherwise when a round does not count or data is wrong.
pub fn run(options: &Options, program: &Program, progress: Progress<'_>) -> Result<FaultReport> {
    ensure!(options.rounds > 0, "at least one round is needed");
    let manifest = Manifest::gather();
    let job = Touch { bytes: options.bytes, seed: options.seed, pin: options.pin };
    let mut arms: Vec<Box<dyn Arm>> = vec![Box::new(Folded::start(program, job)?)];
    if options.zram {
        arms.push(Box::new(Swapped::start(program, job, &options.algorithm)?));
    }
    let loads: &[usize] = if options.hogs == 0 { &[0] } else { &[0, options.hogs] };
    let conditions: Vec<(usize, Order)> =
        loads.iter().flat_map(|&hogs| [(hogs, Order::Random), (hogs, Order::Sequential)]).collect();
    let total = (conditions.len() * options.rounds * arms.len()) as u64;
    let mut runs = Vec::new();
    for (hogs, order) in conditions {
        for round in 0..options.rounds {
            for arm in &mut arms {
                let what = format!("{}, {order:?}, {hogs} hogs", arm.name()).to_lowercase();
                progress(Advance { done: runs.len() as u64, total, what: &what });
                let pass = Round { order, seed: options.seed.wrapping_add(round as u64) };
                runs.push(one(arm.as_mut(), hogs, round, pass)?);
            }
        }
    }
    progress(Advance { done: total, total, what: "done" });
    let agent_threads = arms[0].threads().unwrap_or_default();
    let held = arms.iter_mut().map(|arm| arm.held()).collect::<Result<Vec<_>>>()?;
    let clock_overhead_ns = arms.iter().map(|arm| arm.clock_overhead_ns()).collect();
    let refusal = process::try_real_time().err().map(|error| error.name().to_owned());
    let real_time = RealTime { permitted: refusal.is_none(), refusal };
    Ok(FaultReport::new(options.clone(), manifest, runs, agent_threads, real_time, held, clock_overhead_ns)?)
}

fn one(arm: &mut dyn Arm, hogs: usize, round: usize, pass: Round) -> Result<Run> {
    let name = arm.name();
    let pages = arm.pages();
    let evicted = arm.evict()?;
    ensure!(
        evicted * 100 >= pages * LEAST_EVICTED_PERCENT,
        "{name}: only {evicted} of {pages} pages were evicted; the round would not show what a restore costs"
    );
    let load = Hogs::start(hogs);
    let (result, served) = arm.touch(pass)?;
    drop(load);
    ensure!(result.wrong_words == 0, "{name}: {} words were wrong after the restore", result.wrong_words);
    let touched = result.touch_ns.count();
    ensure!(touched > 0, "{name}: no evicted page was touched");
    let sum_ns: u64 = result.touch_ns.iter().map(|(ns, count)| ns * count).sum();
    Ok(Run {
        arm: name,
        hogs,
        order: pass.order,
        round,
        evicted_pages: evicted,
        touched,
        skipped: result.skipped,
        mean_ns: sum_ns as f64 / touched as f64,
        sum_ns,
        served,
        touch_ns: result.touch_ns,
    })
}

/// Every sample of these runs together.
fn pooled<'a>(runs: impl Iterator<Item = &'a Run>) -> Histogram {
    let mut all = Histogram::default();
    runs.for_each(|run| all.merge(&run.touch_ns));
    all
}

/// The threads of a process that are not its main thread.
fn other_threads(pid: u32) -> Result<Vec<process::Thread>> {
    Ok(process::threads(pid)?.into_iter().filter(|thread| thread.tid != pid).collect())
}
