//! What folding costs a program that gains nothing by it, and what the pager costs while its program is idle.
//!
//! What it is: busy programs with nothing cold, each plain and folded in turns (one touches its whole region at random all
//! the time, one allocates and frees all the time, and some take memory and give it back, in one thread and in several,
//! beside memory that is folded); and a program that fills its memory and sleeps, watched
//! until nothing more is evicted and then for some seconds longer.
//!
//! What it is not: a measure of real programs, which `memfold demo` is.
//!
//! Invariants: the plain arm has neither pager nor allocator of ours, so the ratio holds both; the idle program's memory
//! is checked word by word afterwards.

use crate::arguments::{count, region, setting, whole};
use crate::control::Peer;
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::launch::{plain, Folding};
use crate::output::Output;
use crate::process::{threads, Memory};
use crate::worker::{
    Ask, By, Hello, Job, Loop, Mapper, MapperResult, Pattern, Phase, Program, Sleeper, Spin, SpinResult,
    Worker, Written,
};
use anyhow::{ensure, Context, Result};
use memfold_experiment::runs::{median, of, ratio, Ran};
use memfold_inspect::Counters;
use memfold_pager::config::Setting;
use memfold_stats::Ratio;
use serde::Serialize;
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Find what folding costs programs that gain nothing by it, and what the pager costs an idle program.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench overhead                     what folding costs programs that gain nothing",
])]
pub struct Options {
    /// What all random choices are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Memory of the program that touches all of it all the time, and idle memory of those that map and unmap.
    #[arg(long = "size", value_name = "BYTES", default_value = "64M", value_parser = region)]
    pub busy_bytes: usize,
    /// Memory of the program that fills it and sleeps.
    #[arg(long = "idle-size", value_name = "BYTES", default_value = "256M", value_parser = region)]
    pub idle_bytes: usize,
    /// Length of a run, in milliseconds.
    // A third of it comes before, to settle.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = whole(100..=600_000))]
    pub millis: u64,
    /// Runs of each arm.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = count(1_000))]
    pub rounds: usize,
    /// How long the idle program is watched once it has settled, in milliseconds.
    #[arg(long = "watch", value_name = "MS", default_value_t = 5_000, value_parser = whole(100..=600_000))]
    pub watch_millis: u64,
    /// How long memory must go untouched before it is folded.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = cold_age)]
    pub cold_age: String,
}

fn cold_age(text: &str) -> Result<String, String> {
    setting(Setting::ColdAge, text).map(|_| text.to_owned())
}

/// One run of a busy program.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// A name of [`PROGRAMS`].
    pub program: &'static str,
    /// `plain` or `folded`.
    pub arm: &'static str,
    /// Number of the round, from 0.
    pub round: usize,
    /// Touches, calls, or turns of taking and giving a second.
    pub per_s: f64,
    /// Pages evicted during the run.
    pub pages_evicted: u64,
    /// CPU time of the pager's threads during the run, ns.
    pub pager_cpu_ns: u64,
}

/// A busy program's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Busy {
    /// A name of [`PROGRAMS`].
    pub program: &'static str,
    /// Touches, calls or turns a second when plain; median of runs.
    pub plain_per_s: f64,
    /// The same, folded.
    pub folded_per_s: f64,
    /// Folded over plain.
    pub folded_over_plain: Ratio,
    /// Pages evicted, over all folded runs.
    pub pages_evicted: u64,
}

/// The idle program's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// Time until nothing more was evicted or recompressed, ns.
    pub settled_ns: u64,
    /// How long it was watched then, ns.
    pub watched_ns: u64,
    /// CPU time of all threads but the main one while watched, ns, by `/proc`.
    pub threads_cpu_ns: u64,
    /// CPU time of the pager's threads while watched, ns, by their own account.
    pub pager_cpu_ns: u64,
    /// Share of one CPU that they used: the larger of the two accounts over the time, per cent.
    pub cpu_percent: f64,
    /// Resident memory when the memory was filled, bytes.
    pub rss_before_bytes: u64,
    /// Resident memory when it had settled, bytes.
    pub rss_after_bytes: u64,
    /// The pager's counters then.
    pub counters: Counters,
}

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The busy programs.
    pub busy: Vec<Busy>,
    /// The idle program.
    pub idle: Idle,
    /// Every run of the busy programs.
    pub runs: Vec<Run>,
}

impl Ran for Run {
    type Place<'a> = (&'static str, &'static str);

    fn place(&self) -> (&'static str, &'static str) {
        (self.program, self.arm)
    }

    fn repeat(&self) -> usize {
        self.round
    }
}

/// The busy programs. Those that map or take blocks are named with their number of threads.
pub const PROGRAMS: [&str; 7] =
    ["touching", "allocating", "mapping-1", "mapping-2", "mapping-8", "blocks-1", "blocks-8"];

/// What a program that maps takes each time.
const MAPPED: usize = 1 << 20;
/// What a program that takes blocks takes each time: more than any allocator keeps for the next call, so that it is mapped.
const BLOCK: usize = 64 << 20;

/// How long the idle program may take to settle.
const PATIENCE: Duration = Duration::from_secs(90);

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-overhead-1");

    type Found = Found;

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let Options { busy_bytes: bytes, millis, seed, .. } = *self;
        let settle_millis = millis / 3;
        let spin = Job::Spin(Spin { bytes, settle_millis, millis, seed });
        let mixed = Job::Alloc(Loop {
            pattern: Pattern::Mixed,
            threads: 1,
            slots: 100_000,
            least_bytes: 16,
            most_bytes: 1040,
            written: Written::Ends,
            seed,
        });
        let map = |by: By, bytes: usize, threads: usize| {
            Job::Map(Mapper { by, bytes, threads, idle_bytes: self.busy_bytes, settle_millis, millis, seed })
        };
        let [one, two, eight] = [1, 2, 8].map(|threads| map(By::Mapping, MAPPED, threads));
        let blocks = [1, 8].map(|threads| map(By::Block, BLOCK, threads));
        let jobs = [&spin, &mixed, &one, &two, &eight, &blocks[0], &blocks[1]];
        let mut course = Course::of(self.rounds * 2 * PROGRAMS.len() + 1, progress);
        let mut runs: Vec<Run> = Vec::new();
        for (name, job) in PROGRAMS.into_iter().zip(jobs) {
            for round in 0..self.rounds {
                for arm in ["plain", "folded"] {
                    let (per_s, counters) = course.run(&format!("{name}, {arm}"), || {
                        let folding = (arm == "folded").then(|| folding(program, self)).transpose()?;
                        busy(program, job, folding.as_ref(), millis)
                    })?;
                    let pager_cpu_ns = counters.costs.cpu_ns();
                    let pages_evicted = counters.pages.evicted;
                    runs.push(Run { program: name, arm, round, per_s, pages_evicted, pager_cpu_ns });
                }
            }
        }
        let idle = course.run("idle", || idle(program, self))?;
        course.over("done");
        let busy = PROGRAMS.map(|name| summary(name, &runs)).into_iter().collect::<Result<_>>()?;
        Ok(Found { busy, idle, runs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", &report.found.runs)
    }
}

fn folding(program: &Program, options: &Options) -> Result<Folding> {
    Ok(Folding::new(&program.library)?.set(Setting::StartAt, "0").set(Setting::ColdAge, &options.cold_age))
}

/// Runs a busy program; its rate and, if folded, the pager's counters at its end.
fn busy(program: &Program, job: &Job, folding: Option<&Folding>, millis: u64) -> Result<(f64, Counters)> {
    let mut worker = Worker::start(program, job, |command| match folding {
        None => plain(command),
        Some(folding) => folding.apply(command),
    })?;
    let per_s = match job {
        Job::Spin(_) => worker.receive::<SpinResult>()?.touches_per_s,
        Job::Map(_) => worker.receive::<MapperResult>()?.turns_per_s,
        _ => {
            worker.receive::<Hello>()?;
            worker.ask::<Phase>(&Ask { millis: millis / 5, ..Ask::default() })?;
            worker.ask::<Phase>(&Ask { millis, ..Ask::default() })?.calls_per_s
        }
    };
    let counters = match folding {
        None => Counters::default(),
        Some(folding) => embedded(folding, worker.pid())?.counters()?,
    };
    Ok((per_s, counters))
}

fn embedded(folding: &Folding, pid: u32) -> Result<Peer> {
    let peer = Peer::of(folding.control_dir(), pid, Duration::from_secs(5))?;
    peer.await_folded(Duration::ZERO)?;
    Ok(peer)
}

fn idle(program: &Program, options: &Options) -> Result<Idle> {
    // What is watched comes when all is folded, so that is done as fast as it can be.
    let folding =
        folding(program, options)?.set(Setting::RecompressAge, &options.cold_age).set(Setting::MaxCpu, "100");
    let job = Job::Sleep(Sleeper { bytes: options.idle_bytes, seed: options.seed });
    let mut worker = Worker::start(program, &job, |command| folding.apply(command))?;
    let _pages: usize = worker.receive()?;
    let (pid, start) = (worker.pid(), Instant::now());
    let rss_before_bytes = Memory::of(pid)?.rss_bytes;
    let peer = embedded(&folding, pid)?;
    peer.await_settled(PATIENCE)?;
    let settled_ns = start.elapsed().as_nanos() as u64;
    let (threads_before, pager_before, watch) = (others_cpu_ns(pid)?, pager_cpu_ns(&peer)?, Instant::now());
    sleep(Duration::from_millis(options.watch_millis));
    let watched_ns = watch.elapsed().as_nanos() as u64;
    let threads_cpu_ns = others_cpu_ns(pid)?.saturating_sub(threads_before);
    let pager_cpu_ns = pager_cpu_ns(&peer)?.saturating_sub(pager_before);
    let rss_after_bytes = Memory::of(pid)?.rss_bytes;
    let counters = peer.counters()?;
    ensure!(counters.pages.evicted > 0, "the idle program was not folded: no page of it was evicted");
    let wrong: usize = worker.ask(&())?;
    ensure!(wrong == 0, "{wrong} words of the idle program were wrong after it had been folded");
    Ok(Idle {
        settled_ns,
        watched_ns,
        threads_cpu_ns,
        pager_cpu_ns,
        cpu_percent: threads_cpu_ns.max(pager_cpu_ns) as f64 * 100.0 / watched_ns as f64,
        rss_before_bytes,
        rss_after_bytes,
        counters,
    })
}

fn others_cpu_ns(pid: u32) -> Result<u64> {
    Ok(threads(pid)?.iter().filter(|thread| thread.tid != pid).map(|thread| thread.cpu_ns).sum())
}

fn pager_cpu_ns(peer: &Peer) -> Result<u64> {
    Ok(peer.counters()?.costs.cpu_ns())
}

fn summary(program: &'static str, runs: &[Run]) -> Result<Busy> {
    let (plain, folded) = ((program, "plain"), (program, "folded"));
    Ok(Busy {
        program,
        plain_per_s: median(runs, plain, |run| run.per_s).context("there are no plain runs")?,
        folded_per_s: median(runs, folded, |run| run.per_s).context("there are no folded runs")?,
        folded_over_plain: ratio(runs, folded, plain, |run| run.per_s)?,
        pages_evicted: of(runs, folded).iter().map(|run| run.pages_evicted).sum(),
    })
}

impl fmt::Display for Report<Options> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "programs with nothing cold  ({} runs of {} ms an arm, interleaved, medians)",
            self.options.rounds, self.options.millis
        )?;
        for busy in &self.found.busy {
            let (unit, letter) = if busy.plain_per_s < 1e6 { (1e3, 'k') } else { (1e6, 'M') };
            writeln!(
                f,
                "  {:<12}plain {:>7.1} {letter}/s   folded {:>7.1} {letter}/s   folded/plain {}   pages evicted {}",
                busy.program,
                busy.plain_per_s / unit,
                busy.folded_per_s / unit,
                busy.folded_over_plain,
                busy.pages_evicted
            )?;
        }
        let (idle, mib) = (&self.found.idle, |bytes: u64| bytes >> 20);
        writeln!(
            f,
            "an idle program of {} MiB, settled after {:.1} s",
            mib(self.options.idle_bytes as u64),
            idle.settled_ns as f64 / 1e9
        )?;
        writeln!(
            f,
            "  resident {} -> {} MiB   saved {} MiB   pager {:.2} % of one CPU over {:.1} s",
            mib(idle.rss_before_bytes),
            mib(idle.rss_after_bytes),
            mib(idle.counters.sizes.saved_bytes),
            idle.cpu_percent,
            idle.watched_ns as f64 / 1e9
        )
    }
}
