//! One run: a worker of one arm on one case, warmed up, measured, looked at, ended.
//!
//! Invariants: memory and faults are read by the experiment while the worker waits, so the looking costs the worker nothing.

use super::arm::Arm;
use super::case::Case;
use super::count::{self, Counter, KernelCalls};
use super::cpp::StringMap;
use super::Options;
use crate::backing;
use crate::process::{faults, Memory};
use crate::worker::{Ask, Hello, Job, Loop, Pattern, Phase, Program, Worker};
use anyhow::Result;
use std::process::Command;

/// More than any pattern takes under any allocator, bytes.
const MOST: u64 = 256 << 20;

/// What starts runs.
pub(super) struct Starter<'a> {
    pub(super) program: &'a Program,
    /// There if the suite needs it.
    pub(super) string_map: Option<StringMap>,
}

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    /// Before the measured phase.
    pub(super) warm: Option<Ask>,
    /// The measured phase.
    pub(super) ask: Ask,
}

/// What a run found.
pub(super) struct Found {
    pub(super) phase: Phase,
    /// When the measured phase had ended.
    pub(super) memory: Memory,
    /// Minor faults from the program's start to the end of the measured phase.
    pub(super) minor_faults: u64,
    /// Of these, in the measured phase.
    pub(super) phase_faults: u64,
    /// Kernel calls in the measured phase, where they were counted.
    pub(super) calls: Option<KernelCalls>,
}

impl Length {
    /// So many operations from the start, where they are asked for; else the case's own number of steps from the start; else
    /// `millis` after a quarter of that to warm up.
    pub(super) fn of(case: &Case, options: &Options) -> Length {
        let whole = |ask| Length { warm: None, ask };
        match (options.operations, case.steps, options.millis) {
            (Some(operations), ..) => whole(Ask { operations, ..Ask::default() }),
            (None, steps @ 1.., _) => whole(Ask { steps, ..Ask::default() }),
            (None, 0, millis) => Length {
                warm: Some(Ask { millis: (millis / 4).max(1), ..Ask::default() }),
                ask: Ask { millis, ..Ask::default() },
            },
        }
    }
}

impl<'a> Starter<'a> {
    /// Compiles the C++ program if `cases` need it.
    ///
    /// # Errors
    /// When there is no compiler.
    pub(super) fn new(program: &'a Program, cases: &[Case]) -> Result<Starter<'a>> {
        let needed = cases.iter().any(|case| case.job.pattern == Pattern::StringMap);
        Ok(Starter { program, string_map: needed.then(StringMap::build).transpose()? })
    }

    /// Starts a worker and makes sure that it has the arm's allocator.
    pub(super) fn start(
        &self,
        case: &Case,
        arm: &Arm,
        seed: u64,
        prepare: impl FnOnce(&mut Command) -> Result<()>,
    ) -> Result<Worker> {
        backing::back(MOST);
        let mut prepared = Ok(());
        let apply = |command: &mut Command| {
            arm.apply(command);
            prepared = prepare(command);
        };
        let worker = match &self.string_map {
            Some(program) if case.job.pattern == Pattern::StringMap => {
                let mut command = program.command(seed);
                apply(&mut command);
                Worker::spawn(command)
            }
            _ => Worker::start(self.program, &Job::Alloc(Loop { seed, ..case.job }), apply),
        };
        prepared.and(worker)
    }

    /// One run.
    pub(super) fn run(&self, case: &Case, arm: &Arm, seed: u64, length: Length) -> Result<Found> {
        let mut worker = self.start(case, arm, seed, |_| Ok(()))?;
        let found = measure(&mut worker, arm, length, None)?;
        worker.finish()?;
        Ok(found)
    }

    /// A run whose kernel calls are counted.
    pub(super) fn counted(&self, case: &Case, arm: &Arm, seed: u64, length: Length) -> Result<Found> {
        let mut armed = None;
        let started = self.start(case, arm, seed, |command| {
            armed = Some(count::arm(command)?);
            Ok(())
        });
        let counter = armed.map(count::Armed::listen).transpose();
        // The worker is declared after the counter, so that on an error it is killed first and the counter sees it end.
        let counter = counter?;
        let mut worker = started?;
        let found = measure(&mut worker, arm, length, counter.as_ref())?;
        worker.finish()?;
        Ok(found)
    }
}

fn measure(worker: &mut Worker, arm: &Arm, length: Length, counter: Option<&Counter>) -> Result<Found> {
    arm.check(&worker.receive::<Hello>()?)?;
    if let Some(warm) = length.warm {
        worker.ask::<Phase>(&warm)?;
    }
    let (before, earlier) = (faults(worker.pid())?, counter.map(Counter::calls));
    let phase: Phase = worker.ask(&length.ask)?;
    let (minor_faults, later) = (faults(worker.pid())?, counter.map(Counter::calls));
    let calls = later.zip(earlier).map(|(later, earlier)| later.since(&earlier));
    let memory = Memory::of(worker.pid())?;
    Ok(Found { phase, memory, minor_faults, phase_faults: minor_faults - before, calls })
}
