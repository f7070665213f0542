//! The soak: one process of each allocator runs a case for minutes, in epochs.
//!
//! The processes take turns, an epoch each; a machine that becomes slower for a while is slow for all. While one runs, the
//! others wait and keep what they have.
//!
//! Invariants: a process lives through all its epochs; its memory is read at the end of each.

use super::arm::Arm;
use super::case::Case;
use super::plan::Plan;
use super::summary::Latency;
use super::Options as Suite;
use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::process::{available_memory, Memory};
use crate::worker::{Ask, Hello, Phase, Program, Worker};
use crate::Unsupported;
use anyhow::{bail, ensure, Context, Result};
use memfold_experiment::runs::{self, Ran};
use memfold_plot::{Axis, Chart, Line, Lines, Panels, Plot, Unit};
use memfold_stats::{Histogram, Moments};
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// What runs, and in which arms; its `millis` and `rounds` are not used.
    #[serde(flatten)]
    pub suite: Suite,
    /// How long each allocator runs each case, milliseconds.
    pub soak_millis: u64,
    /// Length of an epoch, milliseconds.
    pub epoch_millis: u64,
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub struct Epoch {
    /// The case.
    pub case: &'static str,
    /// The allocator.
    pub arm: String,
    /// Its number, from 0.
    pub epoch: u64,
    /// Calls of the allocator a second.
    pub calls_per_s: f64,
    /// Resident memory at its end, bytes.
    pub rss_bytes: u64,
    /// Resident anonymous memory at its end, bytes.
    pub anonymous_bytes: u64,
    /// Time of sampled steps.
    #[serde(skip)]
    pub step_ns: Histogram,
}

/// All epochs of one allocator on one case.
#[derive(Clone, Debug, Serialize)]
pub struct SoakCell {
    /// The case.
    pub case: &'static str,
    /// The allocator.
    pub arm: String,
    /// Calls of the allocator a second: the median over epochs.
    pub calls_per_s: f64,
    /// Spread of it.
    pub calls_per_s_moments: Moments,
    /// Calls a second that 99 of 100 epochs exceed.
    pub calls_per_s_p1: f64,
    /// Calls a second that 999 of 1000 epochs exceed.
    pub calls_per_s_p01: f64,
    /// Time of sampled steps of all epochs.
    pub latency: Option<Latency>,
    /// Resident memory in the first fifth of the epochs: the median, bytes.
    pub rss_first_bytes: f64,
    /// Resident memory in the last fifth of the epochs: the median, bytes.
    pub rss_last_bytes: f64,
    /// Growth from the first to the last, as a share of the first.
    pub rss_drift: f64,
}

/// What the soak finds.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Figures of each allocator on each case.
    pub cells: Vec<SoakCell>,
    /// Every epoch.
    pub epochs: Vec<Epoch>,
}

impl Options {
    /// Epochs of each allocator on each case.
    pub(super) fn epochs_of_each(&self) -> u64 {
        self.soak_millis / self.epoch_millis
    }

    /// The cases.
    pub(super) fn cases(&self) -> &[Case] {
        &self.suite.measures.cases
    }
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-alloc-soak-1");

    type Found = Found;

    fn prepare(&mut self) -> Result<()> {
        ensure!(
            (1..=self.soak_millis).contains(&self.epoch_millis),
            "--epoch {} is longer than --soak {}, which is in minutes",
            self.epoch_millis as f64 / 1e3,
            self.soak_millis as f64 / 6e4
        );
        self.suite.prepare()
    }

    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Found> {
        let plan = Plan::new(self.cases(), self.suite.arms(program), program)?;
        for case in plan.cases {
            check_memory(case, plan.arms.len() as u64, available_memory())?;
        }
        let count = self.epochs_of_each();
        let mut course = Course::of(count as usize * plan.cases.len() * plan.arms.len(), progress);
        let (mut cells, mut epochs) = (Vec::new(), Vec::new());
        for case in plan.cases {
            let warm = |arm| Ok((arm, warm(&plan, case, arm, self)?));
            let mut workers: Vec<(&Arm, Worker)> = plan.arms.iter().map(warm).collect::<Result<_>>()?;
            for epoch in 0..count {
                for (arm, worker) in &mut workers {
                    let what = format!("{}, {}, epoch {epoch}", case.name, arm.name);
                    let next = || next(case, &arm.name, epoch, worker, self.epoch_millis);
                    epochs.push(course.run(&what, next)?);
                }
            }
            for (arm, worker) in workers {
                worker
                    .finish()
                    .with_context(|| format!("{} on {} failed at its end", arm.name, case.name))?;
                cells.push(cell(case, &arm.name, &epochs)?);
            }
        }
        course.over("done");
        Ok(Found { cells, epochs })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("epochs.csv", &report.found.epochs)?;
        output.plots(&plots(report))
    }
}

impl Ran for Epoch {
    type Place<'a> = (&'a str, &'a str);

    fn place(&self) -> (&str, &str) {
        (self.case, &self.arm)
    }

    fn repeat(&self) -> usize {
        self.epoch as usize
    }
}

fn check_memory(case: &Case, arms: u64, available: u64) -> Result<()> {
    let needed = 2 * case.bytes() * arms;
    if needed > available {
        bail!(Unsupported(format!(
            "the soak keeps {arms} processes of {}, which need about {} MiB, and {} MiB are available; choose another \
             --pattern, fewer --profile or --no-installed",
            case.name,
            needed >> 20,
            available >> 20
        )));
    }
    Ok(())
}

/// Starts a process and lets it run for a little, which no epoch counts.
fn warm(plan: &Plan<'_>, case: &Case, arm: &Arm, options: &Options) -> Result<Worker> {
    let mut worker = plan.starter.start(case, arm, options.suite.seed, |_| Ok(()))?;
    arm.check(&worker.receive::<Hello>()?)?;
    worker.ask::<Phase>(&Ask { millis: options.epoch_millis.min(1000), ..Ask::default() })?;
    Ok(worker)
}

fn next(case: &Case, arm: &str, epoch: u64, worker: &mut Worker, millis: u64) -> Result<Epoch> {
    let phase: Phase = worker.ask(&Ask { millis, ..Ask::default() })?;
    let Memory { rss_bytes, anonymous_bytes, .. } = Memory::of(worker.pid())?;
    let (case, arm) = (case.name, arm.to_owned());
    Ok(Epoch {
        case,
        arm,
        epoch,
        calls_per_s: phase.calls_per_s,
        rss_bytes,
        anonymous_bytes,
        step_ns: phase.step_ns,
    })
}

fn cell(case: &Case, arm: &str, epochs: &[Epoch]) -> Result<SoakCell> {
    let own = runs::of(epochs, (case.name, arm));
    let mut rates: Vec<f64> = own.iter().map(|epoch| epoch.calls_per_s).collect();
    let steps = runs::pooled(epochs, (case.name, arm), |epoch| &epoch.step_ns);
    let moments = Moments::of(&rates).context("there are no epochs")?;
    rates.sort_by(f64::total_cmp);
    let at = |q| memfold_stats::quantile(&rates, q).context("there are no epochs");
    let fifth = own.len().div_ceil(5);
    let rss = |part: &[&Epoch]| {
        let values: Vec<f64> = part.iter().map(|epoch| epoch.rss_bytes as f64).collect();
        memfold_stats::median(&values).context("there are no epochs")
    };
    let (first, last) = (rss(&own[..fifth])?, rss(&own[own.len() - fifth..])?);
    Ok(SoakCell {
        case: case.name,
        arm: arm.to_owned(),
        calls_per_s: at(0.5)?,
        calls_per_s_moments: moments,
        calls_per_s_p1: at(0.01)?,
        calls_per_s_p01: at(0.001)?,
        latency: Latency::of(&steps),
        rss_first_bytes: first,
        rss_last_bytes: last,
        rss_drift: last / first - 1.0,
    })
}

/// Throughput and memory over epochs.
fn plots(report: &Report<Options>) -> Vec<Plot> {
    let rate = Axis::linear("calls a second").not_negative();
    let memory = Axis::linear("resident memory").unit(Unit::Bytes).not_negative();
    let over = |title, y, figure| over_epochs(report, title, y, figure);
    vec![
        Plot::new("soak_throughput", "", over("Throughput", rate, |epoch| epoch.calls_per_s)),
        Plot::new("soak_memory", "", over("Memory", memory, |epoch| epoch.rss_bytes as f64)),
    ]
}

fn over_epochs(report: &Report<Options>, title: &str, y: Axis, figure: fn(&Epoch) -> f64) -> Panels {
    let panel = |case: &Case| {
        let own = report.found.cells.iter().filter(|cell| cell.case == case.name);
        let line = |cell: &SoakCell| {
            let epochs = runs::of(&report.found.epochs, (cell.case, cell.arm.as_str())).into_iter();
            let points = epochs.map(|epoch| (epoch.epoch as f64, figure(epoch))).collect();
            Line { name: cell.arm.clone(), points }
        };
        let (title, x) = (format!("{title}: {}", case.name), Axis::linear("epoch"));
        Lines { title, x, y: y.clone(), lines: own.map(line).collect() }.svg()
    };
    Panels { panels: report.options.cases().iter().map(panel).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_what_memory_grew_from_the_first_epochs_to_the_last() {
        let case: Case = "mid".parse().unwrap();
        let epochs: Vec<Epoch> = (0..10)
            .map(|epoch| Epoch {
                case: case.name,
                arm: "memfold".into(),
                epoch,
                calls_per_s: 100.0 - epoch as f64,
                rss_bytes: 1000 + 100 * epoch,
                anonymous_bytes: 0,
                step_ns: Histogram::default(),
            })
            .collect();
        let cell = cell(&case, "memfold", &epochs).unwrap();
        assert_eq!((cell.rss_first_bytes, cell.rss_last_bytes), (1050.0, 1850.0));
        assert!((cell.rss_drift - 800.0 / 1050.0).abs() < 1e-12);
        assert!(cell.calls_per_s_p01 < cell.calls_per_s_p1 && cell.calls_per_s_p1 < 92.0, "{cell:?}");
    }

    #[test]
    fn a_soak_whose_processes_do_not_fit_together_is_refused() {
        let case: Case = "mid_mt".parse().unwrap();
        assert!(check_memory(&case, 8, 1 << 40).is_ok());
        let refused = check_memory(&case, 8, 1 << 30).unwrap_err();
        assert!(refused.to_string().contains("8 processes of mid_mt"), "{refused}");
        assert!(refused.downcast_ref::<Unsupported>().is_some());
    }
}
