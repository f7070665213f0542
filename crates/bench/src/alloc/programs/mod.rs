//! Programs that nobody here wrote or tuned for, each with every allocator in turns: those of mimalloc-bench, and whatever else is executable in the
//! directory, such as a script that becomes a compiler by `exec`.
//!
//! What it is not: a measure of trees of processes. Memory is that of the program itself; CPU time and faults have its children's in them.
//!
//! Invariants: as of the suite. A program that is not in the directory is named and left out, for all allocators alike.

mod list;
pub mod page;
mod run;
mod show;

pub use list::{Listed, PROGRAMS};

use super::arm::{Arm, BASE};
use super::plan::Plan;
use super::standing::{self, Figures};
use super::{Options as Suite, SUITE};
use crate::course::{plan, Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::Program;
use anyhow::{bail, ensure, Context, Result};
use memfold_experiment::runs::{self, Ran};
use memfold_plot::{Axis, Bars, Plot, Value};
use memfold_stats::{Moments, Ratio};
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// In which arms, and how often; nothing else of it is used.
    #[serde(flatten)]
    pub suite: Suite,
    /// Where the programs are.
    pub directory: PathBuf,
    /// Which of them; empty for all that are there.
    pub programs: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The program.
    pub program: &'static str,
    /// The allocator.
    pub arm: String,
    /// Number of the round, from 0.
    pub round: usize,
    /// Its time, s: of the run, or for programs that run for a time what they say that their usual work would have taken.
    pub time_s: f64,
    /// Time of the run, s.
    pub elapsed_s: f64,
    /// CPU time of all its threads, s.
    pub cpu_s: f64,
    /// Most memory that was resident, bytes.
    pub rss_peak_bytes: u64,
    /// Faults that needed no device.
    pub minor_faults: u64,
}

/// All runs of one allocator on one program; medians.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The program.
    pub program: &'static str,
    /// The allocator.
    pub arm: String,
    /// Its time, s; see [`Run::time_s`].
    pub time_s: f64,
    /// Spread of it.
    pub time_s_moments: Moments,
    /// The same over glibc's.
    pub time_over_glibc: Ratio,
    /// CPU time, s.
    pub cpu_s: f64,
    /// CPU time of the work that [`Run::time_s`] is of, s.
    pub work_cpu_s: f64,
    /// The same over glibc's.
    pub work_cpu_over_glibc: Ratio,
    /// Most memory that was resident, bytes.
    pub rss_peak_bytes: f64,
    /// The same over glibc's.
    pub rss_over_glibc: Ratio,
    /// Faults that needed no device.
    pub minor_faults: f64,
}

/// One of our arms beside one other, or beside the best of all others on each program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Our arm.
    pub arm: String,
    /// The other; `None` for the best of glibc and the peers on each program.
    pub beside: Option<String>,
    /// Geometric mean over the programs of the time, ours over the other's.
    pub time: f64,
    /// The program on which ours is slowest, and the ratio there.
    pub worst: (&'static str, f64),
    /// Geometric mean over the programs of the CPU time for the same work, ours over the other's.
    pub cpu: f64,
    /// Geometric mean over the programs of the most resident memory, ours over the other's.
    pub rss: f64,
}

/// From which source the programs were built; `scripts/peers` writes it beside them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// By which compiler.
    pub compiler: String,
}

/// A program under an allocator with which it does not work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failed {
    /// The program.
    pub program: &'static str,
    /// The allocator.
    pub arm: String,
    /// What happened.
    pub reason: String,
}

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The allocators, glibc first.
    pub arms: Vec<Arm>,
    /// From what the programs were built, where it is known.
    pub source: Option<Source>,
    /// Programs that are not in the directory.
    pub absent: Vec<String>,
    /// Programs that are left out because they failed under another allocator than ours.
    pub failed: Vec<Failed>,
    /// Figures of each allocator on each program.
    pub cells: Vec<Cell>,
    /// Our arms beside the others, over all programs.
    pub standings: Vec<Beside>,
    /// Every run.
    pub runs: Vec<Run>,
}

impl Options {
    /// The programs to run, and the names of those that are not there.
    fn choose(&self) -> (Vec<Listed>, Vec<String>) {
        let is_there = |program: &Listed| {
            [Some(program.file()), program.input]
                .iter()
                .flatten()
                .all(|name| self.directory.join(name).is_file())
        };
        let known: Vec<Listed> = PROGRAMS.into_iter().filter(is_there).collect();
        // A directory without any of them is meant for others.
        let expected = if known.is_empty() { &[] } else { &PROGRAMS[..] };
        let mut there: Vec<Listed> = known.iter().copied().chain(self.others()).collect();
        let is_absent = |name: &String| !there.iter().any(|program| program.name == *name);
        if self.programs.is_empty() {
            let names = expected.iter().map(|program| program.name.to_owned());
            let absent = names.filter(is_absent).collect();
            return (there, absent);
        }
        let absent = self.programs.iter().filter(|name| is_absent(name)).cloned().collect();
        there.retain(|program| self.programs.iter().any(|name| program.name == name));
        (there, absent)
    }

    /// The executable files that are not known, by name.
    fn others(&self) -> Vec<Listed> {
        let is_executable = |entry: &std::fs::DirEntry| {
            let about = entry.path().metadata();
            about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        };
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter(is_executable).filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| !Listed::is_known_file(name) && !name.starts_with('.')).collect();
        names.sort();
        names.into_iter().map(Listed::other).collect()
    }

    fn source(&self) -> Option<Source> {
        serde_json::from_str(&std::fs::read_to_string(self.directory.join("programs.json")).ok()?).ok()
    }
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-alloc-programs-1");

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        let directory = self.directory.display().to_string();
        let missing = || {
            format!("--programs {directory}: there is no such directory; scripts/peers --mimalloc-bench makes one")
        };
        self.directory = self.directory.canonicalize().with_context(missing)?;
        let (there, absent) = self.choose();
        let is_any = !there.is_empty();
        let there = there.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        ensure!(
            self.programs.is_empty() || absent.is_empty(),
            "--programs {directory}: it has not {}, but {}; scripts/peers --mimalloc-bench builds mimalloc-bench's",
            absent.join(", "),
            if is_any { &there } else { "none of those that were named" }
        );
        ensure!(
            is_any,
            "--programs {directory}: it has no program of mimalloc-bench and no other that is executable; scripts/peers --mimalloc-bench builds those"
        );
        self.suite.prepare()
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let (programs, absent) = self.choose();
        // A trial run of our own program shows whether every library is the allocator where it is preloaded.
        let arms = Plan::new(&SUITE[..1], self.suite.arms(program), program)?.arms;
        let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let order = plan(&programs, &arms, self.suite.rounds);
        let mut course = Course::of(order.len(), progress);
        let mut runs = Vec::with_capacity(order.len());
        let mut failed: Vec<Failed> = Vec::new();
        for (listed, round, arm) in order {
            // A program is compared under all allocators or under none.
            if !works(listed.name, &failed) {
                continue;
            }
            let what = format!("{}, {}", listed.name, arm.name);
            let taken = match course.run(&what, || run::run(&listed, &self.directory, &arm, processors)) {
                Ok(taken) => taken,
                // Another's failure costs nobody the hours before it; our own, and that of a program that does not work by itself, is to be seen at once.
                Err(error) if arm.is_peer() => {
                    let reason = error.root_cause().to_string();
                    failed.push(Failed { program: listed.name, arm: arm.name, reason });
                    continue;
                }
                Err(error) => return Err(error),
            };
            let run::Taken { time_s, elapsed_s, cpu_s, rss_peak_bytes, minor_faults } = taken;
            let (program, arm) = (listed.name, arm.name);
            runs.push(Run { program, arm, round, time_s, elapsed_s, cpu_s, rss_peak_bytes, minor_faults });
        }
        course.over("done");
        runs.retain(|run: &Run| works(run.program, &failed));
        let names = programs.iter().map(|program| program.name);
        let names: Vec<&'static str> = names.filter(|name| works(name, &failed)).collect();
        if let (true, Some(Failed { program, arm, reason })) = (names.is_empty(), failed.first()) {
            bail!("no program works under all allocators; under {arm}, {program} failed: {reason}");
        }
        let cells = names.iter().flat_map(|name| arms.iter().map(move |arm| (*name, arm.name.as_str())));
        let cells = cells.map(|place| cell(place, &runs)).collect::<Result<_>>()?;
        let standings = standings(&names, &arms, &runs)?;
        Ok(Found { arms, source: self.source(), absent, failed, cells, standings, runs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("runs.csv", &report.found.runs)?;
        output.plots(&plots(&report.found))
    }

    fn finish(report: &Report<Options>) -> Result<()> {
        let Some(file) = &report.options.suite.scorecard else { return Ok(()) };
        let before =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let (title, section) = page::section(report).context("the section cannot be made")?;
        let page = page::replace(&before, &title, &section);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Run {
    /// CPU time of the work that its time is of: of the run, or for programs that run for a time that share of it.
    fn work_cpu_s(&self) -> f64 {
        self.cpu_s * self.time_s / self.elapsed_s
    }
}

impl Ran for Run {
    type Place<'a> = (&'a str, &'a str);

    fn place(&self) -> (&str, &str) {
        (self.program, &self.arm)
    }

    fn repeat(&self) -> usize {
        self.round
    }
}

/// Whether a program has failed under no allocator.
fn works(program: &str, failed: &[Failed]) -> bool {
    !failed.iter().any(|failed| failed.program == program)
}

fn cell(place: (&'static str, &str), runs: &[Run]) -> Result<Cell> {
    let (program, arm) = place;
    let median = |figure: fn(&Run) -> f64| runs::median(runs, place, figure).context("there are no runs");
    let over = |figure: fn(&Run) -> f64| runs::ratio(runs, place, (program, BASE), figure);
    let times = runs::column(runs, place, |run| run.time_s);
    Ok(Cell {
        program,
        arm: arm.to_owned(),
        time_s: median(|run| run.time_s)?,
        time_s_moments: Moments::of(&times).context("there are no runs")?,
        time_over_glibc: over(|run| run.time_s)?,
        cpu_s: median(|run| run.cpu_s)?,
        work_cpu_s: median(Run::work_cpu_s)?,
        work_cpu_over_glibc: over(Run::work_cpu_s)?,
        rss_peak_bytes: median(|run| run.rss_peak_bytes as f64)?,
        rss_over_glibc: over(|run| run.rss_peak_bytes as f64)?,
        minor_faults: median(|run| run.minor_faults as f64)?,
    })
}

/// Every arm of ours beside every other arm and beside the best.
fn standings(names: &[&'static str], arms: &[Arm], runs: &[Run]) -> Result<Vec<Beside>> {
    let rss = |run: &Run| run.rss_peak_bytes as f64;
    let by_time =
        standing::of(names, arms, runs, Figures { speed: |run: &Run| 1.0 / run.time_s, rss })?.into_iter();
    let by_cpu = standing::of(names, arms, runs, Figures { speed: |run: &Run| 1.0 / run.work_cpu_s(), rss })?;
    let in_time = by_time.zip(by_cpu).map(|(standing, by_cpu)| Beside {
        arm: standing.arm,
        beside: standing.beside,
        time: 1.0 / standing.calls,
        worst: (standing.least.0, 1.0 / standing.least.1),
        cpu: 1.0 / by_cpu.calls,
        rss: standing.rss,
    });
    Ok(in_time.collect())
}

/// Time and memory beside glibc.
fn plots(found: &Found) -> Vec<Plot> {
    let mut names: Vec<&str> = found.cells.iter().map(|cell| cell.program).collect();
    names.dedup();
    let bars = |title: &str, what: &str, figure: fn(&Cell) -> Value| {
        let others = found.arms.iter().filter(|arm| arm.name != BASE);
        Bars::of(
            title,
            Axis::ratio(format!("{what}, over glibc's")),
            names.iter().map(|name| (*name, *name)),
            others.map(|arm| (arm.name.as_str(), arm.name.as_str())),
            |program, arm| {
                found
                    .cells
                    .iter()
                    .find(|cell| (cell.program, cell.arm.as_str()) == (program, *arm))
                    .map(figure)
            },
        )
    };
    vec![
        Plot::new("time", "", bars("Time beside glibc", "time", |cell| cell.time_over_glibc.into())),
        Plot::new(
            "memory",
            "",
            bars("Memory beside glibc", "most resident memory", |cell| cell.rss_over_glibc.into()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::arm::{Peer, Profile};
    use super::*;

    fn run(program: &'static str, arm: &str, round: usize, time_s: f64, rss_peak_bytes: u64) -> Run {
        let arm = arm.to_owned();
        Run { program, arm, round, time_s, elapsed_s: 7.0, cpu_s: 7.0, rss_peak_bytes, minor_faults: 0 }
    }

    #[test]
    fn times_and_memory_stand_beside_each_other_arm_and_beside_the_best_of_each_program() {
        let peer = Peer { name: "other".into(), library: "/lib/other.so".into() };
        let arms = [Arm::base(), Arm::ours("/lib/x.so".as_ref(), Profile::Balanced), Arm::peer(&peer)];
        let runs: Vec<Run> = (0..3)
            .flat_map(|round| {
                [
                    run("cfrac", BASE, round, 4.0, 100),
                    run("cfrac", "memfold", round, 1.0, 200),
                    run("cfrac", "other", round, 2.0, 400),
                    run("mleak10", BASE, round, 1.0, 100),
                    run("mleak10", "memfold", round, 1.0, 200),
                    run("mleak10", "other", round, 0.5, 400),
                ]
            })
            .collect();
        let found = standings(&["cfrac", "mleak10"], &arms, &runs).unwrap();
        let beside = |other: Option<&str>| found.iter().find(|s| s.beside.as_deref() == other).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(beside(Some(BASE)).time, 0.5) && near(beside(Some(BASE)).rss, 2.0));
        assert!(near(beside(Some("other")).time, 1.0) && near(beside(Some("other")).rss, 0.5));
        assert_eq!(beside(None).worst, ("mleak10", 2.0));
        assert!(near(beside(None).time, 1.0) && near(beside(None).rss, 2.0));
        let cell = cell(("cfrac", "memfold"), &runs).unwrap();
        assert_eq!((cell.time_s, cell.time_over_glibc.median, cell.rss_over_glibc.median), (1.0, 0.25, 2.0));
    }
}
