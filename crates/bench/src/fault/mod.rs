//! What a touch to an evicted page costs, beside the kernel's own way of doing it: swap to zram, or to a file on the disk that a tier is on.
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
mod engine;
mod report;
mod steps;

pub use arm::Served;
pub use report::{ArmReport, Comparison, Condition, Found, Held, RealTime, Row, Run, Sample};

use crate::arguments::{self, count, region};
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::{Order, Program, Round, Touch};
use crate::{hogs::Hogs, process};
use anyhow::{bail, ensure, Result};
use arm::{Arm, Folded, OnDisk, Swapped, Touched};
use clap::builder::RangedU64ValueParser;
use engine::{Beside, Got};
use memfold_pager::tier::choice::Choice;
use serde::Serialize;
use std::path::Path;
use steps::Stepped;
pub use steps::Steps;

/// Time touches to evicted pages, in random and in sequential order, alone and beside CPU hogs.
///
/// A ratio to the peer is the median over pairs of rounds with a 95 % interval (none below 6 rounds).
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench fault --vs zram              touches of evicted pages, beside swap to zram (root)",
    "memfold bench fault --tier disk=/var/tmp --vs swap   the same on a disk, beside the kernel's swap there",
    "memfold bench fault --tier disk=/var/tmp --vs zswap  the same with the kernel's zswap before that (root)",
    "memfold bench fault --steps --out runs/1   where the time of a touch goes, as pictures",
])]
pub struct Options {
    /// What all random choices are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run the same beside the kernel's swap, set up for it and removed afterwards (needs root): to a zram device, or to a file in the
    /// tier's directory, or in /var/tmp, alone or behind zswap. Or beside plain GETs of as many bytes from the tier's engine.
    #[arg(long, value_name = "PEER", value_enum)]
    pub vs: Option<Rival>,
    /// Have what is evicted lie below memory, as `memfold run --tier` does: disk=DIR or redis://HOST:PORT.
    #[arg(long, value_name = "TIER", value_parser = tier)]
    pub tier: Option<String>,
    /// Compressor of the zram device.
    #[arg(long = "zram-algorithm", value_name = "NAME", default_value = "lz4")]
    pub algorithm: String,
    /// Memory that is evicted and touched.
    #[arg(long = "size", value_name = "BYTES", default_value = "64M", value_parser = region)]
    pub bytes: usize,
    /// Rounds of each arm under each condition.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count(1_000))]
    pub rounds: usize,
    /// CPU hogs in the loaded condition; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(0..=256))]
    pub hogs: usize,
    /// Bind the touching threads to this CPU; otherwise they go where the scheduler puts them.
    #[arg(long, value_name = "CPU")]
    pub pin: Option<usize>,
    /// Also show where the time of a touch goes, step by step; with --out as steps.csv, slow.csv and pictures too.
    #[arg(long)]
    pub steps: bool,
}

/// What it can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Rival {
    /// The kernel's swap to compressed memory.
    Zram,
    /// The kernel's swap to a file.
    Swap,
    /// The same with zswap before it, which is turned on for the run.
    Zswap,
    /// The tier's engine, asked for values by the same client.
    Get,
}

impl Rival {
    /// Its name as an arm.
    fn name(self) -> &'static str {
        match self {
            Rival::Zram => "zram",
            Rival::Swap => "swap",
            Rival::Zswap => "zswap",
            Rival::Get => "get",
        }
    }
}

/// A tier, without its age, which is the experiment's.
fn tier(text: &str) -> Result<String, String> {
    if text.contains(",after=") {
        return Err("after= is none of its choices: what is evicted goes down at once".into());
    }
    arguments::tier(text)
}

/// Where a swap file lies that is not beside a tier's.
const SWAP_DIRECTORY: &str = "/var/tmp";

/// The least share of the region, per cent, that must be evicted when a round begins.
const LEAST_EVICTED_PERCENT: usize = 99;

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-fault-2");

    type Found = Found;

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let job = Touch { bytes: self.bytes, seed: self.seed, pin: self.pin };
        let tier = self.tier.as_deref();
        let choice = tier.and_then(|tier| Choice::parse(tier).ok());
        let engines = choice.and_then(|choice| choice.engines());
        let beside = engines.as_ref().map(Beside::start).transpose()?;
        let mut folded = Folded::start(program, job, tier, beside.as_ref().map(Beside::directory))?;
        // Of an engine the same is got as from the tier.
        let value = match (&beside, self.vs) {
            (Some(_), Some(Rival::Get)) => folded.cluster_bytes(self.seed)?,
            _ => 0,
        };
        let mut arms: Vec<Box<dyn Arm>> = vec![Box::new(folded)];
        match self.vs {
            Some(Rival::Zram) => arms.push(Box::new(Swapped::start(program, job, &self.algorithm)?)),
            Some(Rival::Swap | Rival::Zswap) => {
                let directory = choice.and_then(|choice| choice.directory());
                let directory = Path::new(directory.unwrap_or(SWAP_DIRECTORY));
                arms.push(Box::new(match self.vs {
                    Some(Rival::Zswap) => OnDisk::behind_zswap(program, job, directory)?,
                    _ => OnDisk::start(program, job, directory)?,
                }));
            }
            Some(Rival::Get) => {
                let Some(beside) = &beside else {
                    bail!("--vs get asks the tier's engine: --tier redis://HOST:PORT is needed")
                };
                arms.push(Box::new(Got::start(&job, beside, value)?));
            }
            None => {}
        }
        let loads: &[usize] = if self.hogs == 0 { &[0] } else { &[0, self.hogs] };
        let conditions: Vec<(usize, Order)> =
            loads.iter().flat_map(|&hogs| [(hogs, Order::Random), (hogs, Order::Sequential)]).collect();
        let mut course = Course::of(conditions.len() * self.rounds * arms.len(), progress);
        let mut runs = Vec::new();
        let mut steps = Vec::new();
        for (hogs, order) in conditions {
            let mut stepped = Vec::new();
            for round in 0..self.rounds {
                for arm in &mut arms {
                    let what = format!("{}, {order:?}, {hogs} hogs", arm.name()).to_lowercase();
                    let pass =
                        Round { order, seed: self.seed.wrapping_add(round as u64), traced: self.steps };
                    let (run, touches) = course.run(&what, || one(arm.as_mut(), hogs, round, pass))?;
                    runs.push(run);
                    stepped.extend(touches);
                }
            }
            steps.extend(Steps::of(hogs, order, stepped));
        }
        course.over("done");
        let agent_threads = arms[0].threads().unwrap_or_default();
        let held = arms.iter_mut().map(|arm| arm.held()).collect::<Result<Vec<_>>>()?;
        let clock_overhead_ns = arms.iter().map(|arm| arm.clock_overhead_ns()).collect();
        let refusal = process::try_real_time().err().map(|error| error.name().to_owned());
        let real_time = RealTime { permitted: refusal.is_none(), refusal };
        let conditions = report::conditions(&runs, self.vs)?;
        Ok(Found { clock_overhead_ns, agent_threads, real_time, conditions, steps, held, runs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", report.found.rows())?;
        output.rows("samples.csv", report.found.samples())?;
        if report.options.steps {
            output.rows("steps.csv", report.found.steps.iter().flat_map(Steps::rows))?;
            output.rows("slow.csv", report.found.steps.iter().flat_map(Steps::slow_rows))?;
            output.plots(&steps::plots(&report.found.steps))?;
        }
        Ok(())
    }
}

fn one(arm: &mut dyn Arm, hogs: usize, round: usize, pass: Round) -> Result<(Run, Vec<Stepped>)> {
    let name = arm.name();
    let pages = arm.pages();
    let evicted = arm.evict()?;
    ensure!(
        evicted * 100 >= pages * LEAST_EVICTED_PERCENT,
        "{name}: only {evicted} of {pages} pages were evicted; the round would not show what a restore costs"
    );
    let load = Hogs::start(hogs);
    let Touched { result, served, stepped } = arm.touch(pass)?;
    drop(load);
    ensure!(result.wrong_words == 0, "{name}: {} words were wrong after the restore", result.wrong_words);
    let touched = result.touch_ns.count();
    ensure!(touched > 0, "{name}: no evicted page was touched");
    let sum_ns: u64 = result.touch_ns.iter().map(|(ns, count)| ns * count).sum();
    let run = Run {
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
    };
    Ok((run, stepped))
}

/// The threads of a process that are not its main thread.
fn other_threads(pid: u32) -> Result<Vec<process::Thread>> {
    Ok(process::threads(pid)?.into_iter().filter(|thread| thread.tid != pid).collect())
}
