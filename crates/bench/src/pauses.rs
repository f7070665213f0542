//! For how long a program is stopped when it is attached to and detached from, by its own clock.
//!
//! What it is: one program with many threads that look at the clock ([`crate::worker`]'s beat), attached to and detached from again and again; in turns with as much
//! time in which nothing is done to it, as its threads wait for a processor now and then anyway.
//!
//! What it is not: a measure of what folding costs: nothing of the program is cold meanwhile.

use crate::arguments::{count, region};
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::launch::plain;
use crate::output::Output;
use crate::worker::{Beat, BeatRequest, Job, Program, Worker};
use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::{Command, Output as Ended};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Find for how long a program is stopped when it is attached to and detached from, by its own clock. As root.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = crate::examples![
    "memfold bench attach --rounds 1000         how long a program is stopped to attach to it (root)",
])]
pub struct Options {
    /// How often it is attached to and detached from.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(100_000))]
    pub rounds: usize,
    /// Threads of the program.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(1_000))]
    pub threads: usize,
    /// Memory of the program.
    #[arg(long = "size", value_name = "BYTES", default_value = "64M", value_parser = region)]
    pub bytes: usize,
}

/// One round, ns.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    /// Number of the round, from 0.
    pub round: usize,
    /// The longest stop of any thread while it was attached to and detached from, by the program's clock.
    pub attached_ns: u64,
    /// The longest in as much time in which nothing was done to it.
    pub plain_ns: u64,
    /// For how long the thread that was borrowed to attach was stopped, by the clock of who attaches.
    pub borrowed_ns: u64,
}

/// What is the middle, what one in a hundred is longer than, and the longest, ns.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Half are longer.
    pub p50_ns: u64,
    /// One in a hundred is longer.
    pub p99_ns: u64,
    /// The longest.
    pub longest_ns: u64,
}

/// What is found.
#[derive(Debug, Serialize)]
pub struct Found {
    /// While it was attached to and detached from.
    pub attached: Spread,
    /// While nothing was done to it.
    pub plain: Spread,
    /// The thread that was borrowed to attach.
    pub borrowed: Spread,
    /// All rounds.
    #[serde(skip)]
    pub runs: Vec<Run>,
}

/// What `memfold attach --json` says of a process.
#[derive(Deserialize)]
struct Outcome {
    reason: Option<String>,
    stopped_ns: Option<u64>,
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-attach-1");

    type Found = Found;

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let job = Job::Beat(Beat { threads: self.threads, bytes: self.bytes, seed: 1 });
        let mut worker = Worker::start(program, &job, plain)?;
        let _threads: usize = worker.receive()?;
        let pid = worker.pid().to_string();
        let mut course = Course::of(self.rounds, progress);
        let mut runs = Vec::new();
        for round in 0..self.rounds {
            runs.push(course.run("attach and detach", || measure(program, &mut worker, &pid, round))?);
        }
        course.over("done");
        let wrong: u64 = worker.ask(&BeatRequest::Wrong)?;
        ensure!(wrong == 0, "{wrong} words of the program were wrong after it had been attached to");
        Ok(Found {
            attached: spread(&runs, |run| run.attached_ns)?,
            plain: spread(&runs, |run| run.plain_ns)?,
            borrowed: spread(&runs, |run| run.borrowed_ns)?,
            runs,
        })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", &report.found.runs)
    }
}

fn measure(program: &Program, worker: &mut Worker, pid: &str, round: usize) -> Result<Run> {
    let _before: u64 = worker.ask(&BeatRequest::Longest)?;
    let began = Instant::now();
    let attached = memfold(program, &["attach", "--json", pid])?;
    let outcomes: Vec<Outcome> = serde_json::from_slice(&attached.stdout).context("memfold attach")?;
    let Some(borrowed_ns) = outcomes.first().and_then(|outcome| outcome.stopped_ns) else {
        let why = outcomes.into_iter().next().and_then(|outcome| outcome.reason);
        bail!("it could not be attached to: {}", why.unwrap_or_default());
    };
    let detached = memfold(program, &["detach", pid])?;
    ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr).trim());
    let took = began.elapsed();
    let attached_ns = worker.ask(&BeatRequest::Longest)?;
    // As busy a machine: commands that do nothing to it.
    let began = Instant::now();
    memfold(program, &["attach", "--json", "--dry-run", pid])?;
    sleep(took.saturating_sub(began.elapsed()).min(Duration::from_secs(1)));
    Ok(Run { round, attached_ns, plain_ns: worker.ask(&BeatRequest::Longest)?, borrowed_ns })
}

fn memfold(program: &Program, arguments: &[&str]) -> Result<Ended> {
    Command::new(&program.path).args(arguments).output().context("memfold cannot be started")
}

fn spread(runs: &[Run], of: impl Fn(&Run) -> u64) -> Result<Spread> {
    let mut all: Vec<u64> = runs.iter().map(of).collect();
    all.sort_unstable();
    let at = |percent: usize| all.get((all.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    let found = || Some(Spread { p50_ns: at(50)?, p99_ns: at(99)?, longest_ns: at(100)? });
    found().context("there are no rounds")
}

impl fmt::Display for Report<Options> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { rounds, threads, .. } = self.options;
        writeln!(
            f,
            "the longest stop of any of {threads} threads  ({rounds} rounds, by the program's clock)"
        )?;
        let mut line = |what: &str, spread: Spread| {
            let ms = |ns: u64| ns as f64 / 1e6;
            let Spread { p50_ns, p99_ns, longest_ns } = spread;
            writeln!(
                f,
                "  {what:<28}p50 {:>7.2} ms   p99 {:>7.2} ms   longest {:>7.2} ms",
                ms(p50_ns),
                ms(p99_ns),
                ms(longest_ns)
            )
        };
        line("attached to and detached", self.found.attached)?;
        line("as long, nothing done", self.found.plain)?;
        line("the thread that is borrowed", self.found.borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_is_longer_than_the_ninety_ninth() {
        let runs: Vec<Run> = (0..200)
            .map(|round| Run { round, attached_ns: 200 - round as u64, plain_ns: 0, borrowed_ns: 0 })
            .collect();
        let found = spread(&runs, |run| run.attached_ns).unwrap();
        assert_eq!((found.p50_ns, found.p99_ns, found.longest_ns), (100, 198, 200));
        assert!(spread(&[], |run| run.plain_ns).is_err());
    }
}
