//! Workloads: programs that use memory as many programs do, made to be run with and without the pager.
//!
//! What it is: a region or a heap of known contents, and workers that do units of work on it for a given time. A
//! workload reports how many units it did, how long each took, and how much of its memory was cold by its own account.
//!
//! What it is not: an experiment. A workload knows nothing of pagers; only where the kernel is to swap does it say so.
//!
//! Invariants: what is touched in which order is a function of the options; every touch checks the block's stamp, and a
//! wrong one fails the run.

mod churn;
mod data;
mod forks;
mod ground;
mod kinds;
mod meter;
mod report;
mod truth;

pub use data::Data;
pub use report::WorkloadReport;
pub use truth::Cold;

use crate::arguments::{count, millis, number, region, share as share_of};
use crate::verify;
use anyhow::{ensure, Result};
pub(crate) use data::Filler;
use ground::{share, Ground, Origin};
use meter::{Done, Meter};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use truth::Truth;

memfold_experiment::named! {
    /// A workload by name.
    pub enum Kind, "workload" {
        /// Bursts of requests to a small working set, with silence in between.
        InteractiveBurst = "interactive_burst",
        /// Streams through a window of a mapping from end to end; the window moves on.
        AnonStreamer = "anon_streamer",
        /// Touches blocks of a heap at random, a scattered part of it often.
        RandomTouchHeap = "random_touch_heap",
        /// Maps, writes and unmaps all the time, beside a region that is seldom used.
        MmapChurn = "mmap_churn",
        /// Touches a working set at random, which moves.
        PhaseShift = "phase_shift",
        /// Serves requests for pieces of a heap, popular ones more often.
        ZipfHeap = "zipf_heap",
        /// Forks children that touch memory and end.
        ForkTouchExit = "fork_touch_exit",
        /// `memfold bench verify`: all that programs do to memory, every byte checked.
        Verify = "verify",
    }
}

impl Kind {
    fn origin(self) -> Origin {
        match self {
            Kind::RandomTouchHeap | Kind::ZipfHeap => Origin::Heap,
            _ => Origin::Mapping,
        }
    }
}

/// Maps `len` bytes of zeros, through libc, which is where the preloaded library sees it.
pub(crate) fn map(len: usize) -> Result<usize> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping, placed by the kernel.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    ensure!(base != libc::MAP_FAILED, "cannot map {len} bytes: {}", std::io::Error::last_os_error());
    Ok(base as usize)
}

/// Run a workload and report its units of work, their times and its cold memory.
///
/// It runs as it was started: `memfold run -- memfold bench workload zipf_heap` is folded, without `memfold run` it is not.
/// What is not given is left to the workload.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench workload interactive_burst   one workload, plainly",
    "memfold run -- memfold bench workload zipf_heap   the same, folded",
])]
pub struct Options {
    /// interactive_burst, anon_streamer, random_touch_heap, mmap_churn, phase_shift, zipf_heap, fork_touch_exit or verify.
    #[arg(value_name = "NAME")]
    kind: Kind,
    #[command(flatten)]
    measures: Measures,
    /// Touches of blocks in a unit.
    #[arg(long, value_name = "N", value_parser = count(1 << 30))]
    touches: Option<usize>,
    /// Rounds of computing in a unit, about 2 ns each.
    #[arg(long, value_name = "N")]
    work: Option<u64>,
    /// Exponent of the popularity of pieces (zipf_heap).
    #[arg(long, value_name = "X", value_parser = number(0.0, 10.0))]
    skew: Option<f64>,
    /// Size of the mappings that come and go (mmap_churn).
    #[arg(long, value_name = "BYTES", value_parser = region)]
    churn: Option<usize>,
}

/// Measures that all workloads have; `None` leaves one to the workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Measures {
    /// How long to run once the memory is filled, such as 10s.
    #[arg(long = "duration", value_name = "TIME", default_value = "10s", value_parser = millis)]
    pub millis: u64,
    /// Memory that the workload keeps.
    #[arg(long = "region", value_name = "BYTES", default_value = "256M", value_parser = region)]
    pub bytes: usize,
    /// Threads, each with its share of the memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(256))]
    pub workers: usize,
    /// What contents and orders are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What the memory is filled with: mixed, text, json, pointers, floats or random.
    #[arg(long, value_name = "KIND", default_value = "mixed")]
    pub data: Data,
    /// Units a second that each worker begins; 0 for as many as it can.
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = number(0.0, 1e9))]
    pub rate: f64,
    /// Share of the memory that is in use at a time, in per cent.
    #[arg(long = "hot", value_name = "PERCENT", value_parser = share_of)]
    pub hot_percent: Option<f64>,
    /// Touches of memory anywhere, a second and worker.
    #[arg(long, value_name = "N", value_parser = number(0.0, 1e9))]
    pub cold_rate: Option<f64>,
    /// How long a working set stays where it is, such as 2s (anon_streamer, phase_shift).
    #[arg(long = "phase", value_name = "TIME", value_parser = millis)]
    #[serde(default)]
    pub phase_millis: Option<u64>,
    /// How long memory must be untouched to be cold.
    #[arg(long = "cold-age", value_name = "TIME", default_value = "1s", value_parser = millis)]
    pub cold_millis: u64,
    /// Share of one CPU that folding may take where memfold folds, per cent; `None` for its default.
    #[arg(skip)]
    #[serde(default)]
    pub max_cpu_percent: Option<f64>,
}

impl Measures {
    /// A workload with them.
    pub fn of(&self, kind: Kind) -> Workload {
        let usual = Workload::new(kind);
        Workload {
            millis: self.millis,
            bytes: self.bytes,
            workers: self.workers,
            seed: self.seed,
            data: self.data,
            rate: self.rate,
            cold_millis: self.cold_millis,
            hot_percent: self.hot_percent.unwrap_or(usual.hot_percent),
            cold_rate: self.cold_rate.unwrap_or(usual.cold_rate),
            phase_millis: self.phase_millis.unwrap_or(usual.phase_millis),
            ..usual
        }
    }
}

/// Runs a workload in this process.
///
/// # Errors
/// As [`Workload::prepare`] and [`Prepared::run`].
pub fn run(options: &Options) -> Result<WorkloadReport> {
    let usual = options.measures.of(options.kind);
    let workload = Workload {
        touches: options.touches.unwrap_or(usual.touches),
        work: options.work.unwrap_or(usual.work),
        skew: options.skew.unwrap_or(usual.skew),
        churn_bytes: options.churn.unwrap_or(usual.churn_bytes),
        ..usual
    };
    workload.prepare()?.run()
}

/// A workload with its measures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Which one.
    pub kind: Kind,
    /// How long to run, milliseconds, after the memory was filled.
    pub millis: u64,
    /// Memory of all workers together, bytes.
    pub bytes: usize,
    /// Threads, each with its share of the memory.
    pub workers: usize,
    /// What contents and orders are made from.
    pub seed: u64,
    /// What the memory is filled with.
    pub data: Data,
    /// Units a second that each worker begins; 0 for as many as it can.
    pub rate: f64,
    /// Touches of blocks in a unit.
    pub touches: usize,
    /// Rounds of computing in a unit, about 2 ns each.
    pub work: u64,
    /// Share of the memory that is in use at a time, per cent.
    pub hot_percent: f64,
    /// Touches of memory anywhere, a second and worker.
    pub cold_rate: f64,
    /// How long a working set stays where it is, milliseconds.
    pub phase_millis: u64,
    /// Exponent of the popularity of pieces.
    pub skew: f64,
    /// Size of a mapping that comes and goes, bytes.
    pub churn_bytes: usize,
    /// How long memory must be untouched to count as cold, milliseconds.
    pub cold_millis: u64,
    /// Whether the kernel is asked to swap out what becomes cold.
    pub page_out: bool,
}

impl Workload {
    /// The workload with the measures that experiments take unless told otherwise.
    pub fn new(kind: Kind) -> Workload {
        let (touches, hot_percent, phase_millis) = match kind {
            Kind::AnonStreamer => (0, 12.5, 1_000),
            Kind::ZipfHeap => (4, 100.0, 2_000),
            Kind::ForkTouchExit => (256, 10.0, 2_000),
            Kind::PhaseShift => (64, 12.5, 2_000),
            Kind::RandomTouchHeap => (64, 20.0, 2_000),
            Kind::InteractiveBurst | Kind::MmapChurn | Kind::Verify => (16, 10.0, 2_000),
        };
        Workload {
            kind,
            millis: 10_000,
            bytes: 256 << 20,
            workers: 1,
            seed: 1,
            data: Data::Mixed,
            rate: 0.0,
            touches,
            work: 50_000,
            hot_percent,
            cold_rate: 20.0,
            phase_millis,
            skew: 1.2,
            churn_bytes: 2 << 20,
            cold_millis: 1_000,
            page_out: false,
        }
    }

    /// Takes and fills the memory.
    ///
    /// # Errors
    /// When the measures make no sense or there is too little memory.
    pub fn prepare(&self) -> Result<Prepared> {
        ensure!(self.workers > 0, "at least one worker is needed");
        ensure!(
            self.hot_percent > 0.0 && self.hot_percent <= 100.0,
            "{} % of the memory cannot be in use: a share above 0 and up to 100 is needed",
            self.hot_percent
        );
        let start = Instant::now();
        // The verifier brings its own memory.
        let bytes = if self.kind == Kind::Verify { ground::PIECE * self.workers } else { self.bytes };
        let filler = Filler::new(self.data, self.seed);
        let ground = Ground::new(self.kind.origin(), bytes, &filler, self.seed)?;
        share(ground.pieces(), 0, self.workers)?;
        let setup_ns = start.elapsed().as_nanos() as u64;
        Ok(Prepared { options: *self, ground, setup_ns, registers: false })
    }
}

/// A workload whose memory is filled.
pub struct Prepared {
    options: Workload,
    ground: Ground,
    setup_ns: u64,
    /// Whether it registers the memory by the library, and what it maps besides.
    registers: bool,
}

impl Prepared {
    /// Registers the memory by the library, and later the mappings of `mmap_churn`, where `MEMFOLD_DAEMON` names a daemon; nothing
    /// otherwise.
    ///
    /// # Errors
    /// When the library cannot fold the memory.
    pub fn register_under_daemon(&mut self) -> Result<()> {
        if std::env::var_os("MEMFOLD_DAEMON").is_some() {
            memfold_client::start(&memfold_client::Options::default())?;
            let (start, end) = self.ground.bounds();
            memfold_client::register(start as *const u8, end - start)?;
            self.registers = true;
        }
        Ok(())
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a worker fails, or memory did not hold what was written.
    pub fn run(&self) -> Result<WorkloadReport> {
        let start = Instant::now();
        let (done, truth, elapsed) = match self.options.kind {
            Kind::Verify => (self.verify()?, Truth::default(), start.elapsed()),
            _ => self.work()?,
        };
        let wrong = self.ground.wrong();
        ensure!(wrong == 0, "{}: {wrong} touches found memory changed or lost", self.options.kind.name());
        Ok(WorkloadReport::new(&self.options, self.ground.bytes(), self.setup_ns, elapsed, &done, truth))
    }

    /// What was done, what the watcher saw, and how long the workers took; the watcher may sleep for a while after that.
    fn work(&self) -> Result<(Done, Truth, Duration)> {
        let start = Instant::now();
        let (options, ground, registers) = (&self.options, &self.ground, self.registers);
        let (stop, cold_age) = (AtomicBool::new(false), Duration::from_millis(options.cold_millis));
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| truth::watch(ground, cold_age, options.page_out, &stop));
            let workers: Vec<_> = (0..options.workers)
                .map(|number| {
                    scope.spawn(move || -> Result<Done> {
                        let pieces = share(ground.pieces(), number, options.workers)?;
                        let mut meter = Meter::new(ground, options, pieces, number, registers);
                        kinds::run(options.kind, &mut meter)?;
                        Ok(meter.finish())
                    })
                })
                .collect();
            let mut all: Result<Done> = Ok(Done::default());
            for worker in workers {
                let done = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"));
                all = all.and_then(|mut all: Done| {
                    let done = done??;
                    all.units += done.units;
                    all.latencies.merge(&done.latencies);
                    Ok(all)
                });
            }
            let elapsed = start.elapsed();
            stop.store(true, Relaxed);
            let truth = watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
            Ok((all?, truth, elapsed))
        })
    }

    fn verify(&self) -> Result<Done> {
        let Workload { millis, workers, seed, .. } = self.options;
        let seconds = millis.div_ceil(1000).max(1);
        let options = verify::Options {
            seconds,
            operations: None,
            threads: workers,
            seed,
            without: vec![],
            torture: false,
        };
        let report = verify::run(&options)?;
        ensure!(report.passed(), "{report}");
        Ok(Done { units: report.operations, ..Done::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(kind: Kind) -> Workload {
        Workload {
            millis: 60,
            bytes: 4 << 20,
            work: 100,
            phase_millis: 20,
            cold_millis: 20,
            ..Workload::new(kind)
        }
    }

    #[test]
    fn every_workload_does_units_and_times_each() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Verify) {
            let name = kind.name();
            let options = Workload { workers: 2, ..small(kind) };
            let report = options.prepare().unwrap().run().unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(report.units > 0 && report.latencies.count() == report.units, "{name}: {report:?}");
            assert!(report.region_bytes >= 4 << 20 && report.units_per_s > 0.0, "{name}: {report:?}");
        }
    }

    #[test]
    fn a_workload_that_leaves_memory_alone_knows_that_it_is_cold() {
        let options = Workload { cold_rate: 0.0, millis: 200, ..small(Kind::PhaseShift) };
        let hot_throughout = Workload { hot_percent: 100.0, ..options };
        let cold = |options: Workload| options.prepare().unwrap().run().unwrap().cold_bytes_mean;
        assert!(cold(options) > (1 << 20) as f64, "{}", cold(options));
        // Who is kept from the CPUs leaves its memory alone, too.
        assert!((0..50).any(|_| cold(hot_throughout) < cold(options)));
    }

    #[test]
    fn a_rate_is_kept_to_and_not_exceeded() {
        let options = Workload { rate: 100.0, millis: 300, ..small(Kind::RandomTouchHeap) };
        let units = options.prepare().unwrap().run().unwrap().units;
        assert!(units <= 32, "{units} units in 300 ms at 100 a second");
    }

    #[test]
    fn measures_that_make_no_sense_are_refused_with_their_value() {
        let refused = |options: Workload| format!("{:#}", options.prepare().err().expect("refused"));
        assert!(refused(Workload { bytes: 1000, ..small(Kind::ZipfHeap) }).contains("1000 bytes"));
        assert!(refused(Workload { workers: 1000, ..small(Kind::ZipfHeap) }).contains("1000 workers"));
        assert!(refused(Workload { hot_percent: 0.0, ..small(Kind::ZipfHeap) }).contains("0 %"));
        assert!("zipf".parse::<Kind>().unwrap_err().contains("zipf_heap"));
    }
}
