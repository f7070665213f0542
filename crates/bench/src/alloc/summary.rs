//! The figures of each allocator on each case, over its runs.

use super::arm::{Arm, BASE};
use super::case::Case;
use super::{Counted, Run};
use anyhow::{Context, Result};
use memfold_experiment::runs::{self, column, pooled};
use memfold_stats::{Histogram, Moments, Ratio};
use serde::Serialize;

/// All runs of one allocator on one case. Memory and faults are medians.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The case.
    pub case: &'static str,
    /// The allocator.
    pub arm: String,
    /// Calls of the allocator in the phase: the median.
    pub operations: f64,
    /// Time of the phase, ns: the median.
    pub elapsed_ns: f64,
    /// The same for each call.
    pub ns_per_call: f64,
    /// Calls of the allocator a second: the median.
    pub calls_per_s: f64,
    /// Mean, standard deviation, coefficient of variation and extremes of it.
    pub calls_per_s_moments: Moments,
    /// Calls a second, over glibc's.
    pub calls_over_glibc: Ratio,
    /// Most resident memory, bytes.
    pub rss_peak_bytes: f64,
    /// The same over glibc's. Both hold the code of the worker and the library too.
    pub rss_over_glibc: Ratio,
    /// Resident memory at the end, bytes.
    pub rss_bytes: f64,
    /// Resident anonymous memory at the end, bytes.
    pub anonymous_bytes: f64,
    /// Minor faults from the program's start to the end of the phase.
    pub minor_faults: f64,
    /// Of these, in the phase.
    pub phase_faults: f64,
    /// The same for each call of the allocator.
    pub faults_per_call: f64,
    /// Kernel calls that change mappings, in the counted run's phase.
    pub kernel_calls: Option<u64>,
    /// The same for each call of the allocator.
    pub kernel_calls_per_call: Option<f64>,
    /// Time of sampled steps of all runs; `None` where none were sampled.
    pub latency: Option<Latency>,
}

/// Percentiles of sampled steps, ns, within 1/16; `None` for one above which not a single sample would lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many steps were sampled.
    pub samples: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// 99.99th percentile.
    pub p9999_ns: Option<u64>,
}

impl Latency {
    /// Of a histogram; `None` for an empty one.
    pub fn of(steps: &Histogram) -> Option<Latency> {
        let samples = steps.count();
        let beyond = |one_in: u64, q| steps.quantile(q).filter(|_| samples >= one_in);
        Some(Latency {
            samples,
            p50_ns: steps.quantile(0.5)?,
            p99_ns: beyond(100, 0.99),
            p999_ns: beyond(1000, 0.999),
            p9999_ns: beyond(10_000, 0.9999),
        })
    }
}

/// The figures of every arm on every case.
pub(super) fn cells(cases: &[Case], arms: &[Arm], runs: &[Run], counted: &[Counted]) -> Result<Vec<Cell>> {
    let places = cases.iter().flat_map(|case| arms.iter().map(move |arm| (case.name, arm.name.as_str())));
    places.map(|(case, arm)| cell(case, arm, runs, counted)).collect()
}

fn cell(case: &'static str, arm: &str, runs: &[Run], counted: &[Counted]) -> Result<Cell> {
    let (place, calls) = ((case, arm), |run: &Run| run.calls_per_s);
    let median = |figure: fn(&Run) -> f64| runs::median(runs, place, figure).context("there are no runs");
    let over_glibc = |figure: fn(&Run) -> f64| runs::ratio(runs, place, (case, BASE), figure);
    let kernel = counted.iter().find(|counted| (counted.case, counted.arm.as_str()) == (case, arm));
    Ok(Cell {
        case,
        arm: arm.to_owned(),
        operations: median(|run| run.operations as f64)?,
        elapsed_ns: median(|run| run.elapsed_ns as f64)?,
        ns_per_call: median(|run| run.ns_per_call)?,
        calls_per_s: median(calls)?,
        calls_per_s_moments: Moments::of(&column(runs, place, calls)).context("there are no runs")?,
        calls_over_glibc: over_glibc(calls)?,
        rss_peak_bytes: median(|run| run.rss_peak_bytes as f64)?,
        rss_over_glibc: over_glibc(|run| run.rss_peak_bytes as f64)?,
        rss_bytes: median(|run| run.rss_bytes as f64)?,
        anonymous_bytes: median(|run| run.anonymous_bytes as f64)?,
        minor_faults: median(|run| run.minor_faults as f64)?,
        phase_faults: median(|run| run.phase_faults as f64)?,
        faults_per_call: median(|run| run.faults_per_call)?,
        kernel_calls: kernel.map(|kernel| kernel.calls.total()),
        kernel_calls_per_call: kernel
            .map(|kernel| kernel.calls.total() as f64 / kernel.operations.max(1) as f64),
        latency: Latency::of(&pooled(runs, place, |run| &run.step_ns)),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run that has nothing but its rate.
    pub(in crate::alloc) fn run(case: &'static str, arm: &str, round: usize, calls_per_s: f64) -> Run {
        Run {
            case,
            arm: arm.into(),
            round,
            operations: 1000,
            elapsed_ns: 50_000,
            ns_per_call: 50.0,
            calls_per_s,
            rss_peak_bytes: 1000,
            rss_bytes: 900,
            anonymous_bytes: 10,
            minor_faults: 7,
            phase_faults: 3,
            faults_per_call: 0.003,
            step_ns: vec![(20, 99), (500, 1)].into(),
        }
    }

    #[test]
    fn each_allocator_is_divided_by_glibc_of_its_own_round_in_whatever_order_they_ran() {
        let mut runs: Vec<Run> = (1..=6)
            .flat_map(|round| {
                let glibc = 10.0 * round as f64;
                [run("mid", BASE, round, glibc), run("mid", "other", 7 - round, 15.0 * (7 - round) as f64)]
            })
            .collect();
        runs.reverse();
        let counted = KernelCallsOf { case: "mid", arm: "other", calls: 5, operations: 1000 }.counted();
        let cell = cell("mid", "other", &runs, &[counted]).unwrap();
        assert_eq!(cell.calls_over_glibc.median, 1.5);
        assert!(cell.calls_over_glibc.differs && !cell.rss_over_glibc.differs);
        assert_eq!((cell.kernel_calls, cell.kernel_calls_per_call), (Some(5), Some(0.005)));
        assert_eq!((cell.operations, cell.ns_per_call, cell.faults_per_call), (1000.0, 50.0, 0.003));
        let latency = cell.latency.unwrap();
        assert_eq!(
            (latency.samples, latency.p50_ns, latency.p99_ns, latency.p999_ns),
            (600, 20, Some(20), None)
        );
    }

    struct KernelCallsOf {
        case: &'static str,
        arm: &'static str,
        calls: u64,
        operations: u64,
    }

    impl KernelCallsOf {
        fn counted(self) -> Counted {
            let calls = super::super::KernelCalls { madvise: self.calls, ..Default::default() };
            Counted { case: self.case, arm: self.arm.into(), operations: self.operations, calls }
        }
    }
}
