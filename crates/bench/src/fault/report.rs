//! What `memfold bench fault` reports, as JSON, as rows and as a table.

use super::steps::{micros, Steps};
use super::{Options, Rival, Served};
use crate::experiment::Report;
use crate::process::Thread;
use crate::worker::Order;
use memfold_experiment::runs::{of, pooled, ratio, Ran};
use memfold_stats::{BadPairs, Histogram, Quantiles, Ratio};
use serde::Serialize;
use std::fmt;

/// One round of one arm.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `folded`, `zram`, `swap`, `zswap` or `get`.
    pub arm: &'static str,
    /// CPU hogs beside it.
    pub hogs: usize,
    /// Order of the touches.
    pub order: Order,
    /// Number of the round, from 0.
    pub round: usize,
    /// Pages of the region that were evicted when the round began.
    pub evicted_pages: usize,
    /// Touches in the samples.
    pub touched: u64,
    /// Pages left out because they were present before their touch.
    pub skipped: usize,
    /// Mean time of a touch, ns.
    pub mean_ns: f64,
    /// All of them together, by the program's own clock, ns.
    pub sum_ns: u64,
    /// How the pager served them; `None` for the kernel's swap.
    pub served: Option<Served>,
    /// Every sample, ns; written to its own file.
    #[serde(skip)]
    pub touch_ns: Histogram,
}

/// One line of the file of runs.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Run`, and percentiles of its samples.
pub struct Row {
    pub arm: &'static str,
    pub hogs: usize,
    pub order: Order,
    pub round: usize,
    pub evicted_pages: usize,
    pub skipped_pages: usize,
    pub touches: u64,
    pub mean_ns: f64,
    pub pager_mean_ns: Option<f64>,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub waits: Option<u64>,
    pub real_time_waits: Option<u64>,
}

/// One line of the file of samples: how often a round saw a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Run`, and a value with its count.
pub struct Sample {
    pub arm: &'static str,
    pub hogs: usize,
    pub order: Order,
    pub round: usize,
    pub touch_ns: u64,
    pub count: u64,
}

/// All rounds of an arm under one condition.
#[derive(Clone, Debug, Serialize)]
pub struct ArmReport {
    /// `folded`, `zram`, `swap`, `zswap` or `get`.
    pub arm: &'static str,
    /// Pages evicted, summed over the rounds.
    pub evicted_pages: usize,
    /// Pages left out because they were present before their touch.
    pub skipped_pages: usize,
    /// Touches of all rounds together, by the program's own clock, ns.
    pub touch_ns: Quantiles,
    /// What the pager counted as waits, over what the program's own clock says of all touches; `None` for the kernel's swap.
    pub pager_over_program: Option<f64>,
}

/// Ratios folded / peer, each the median over pairs of rounds.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // Named by the statistic that is compared.
pub struct Comparison {
    pub mean: Ratio,
    pub p50: Ratio,
    pub p99: Ratio,
    pub p999: Ratio,
}

/// One condition: a load and an order.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    /// CPU hogs.
    pub hogs: usize,
    /// Order of the touches.
    pub order: Order,
    /// The arms.
    pub arms: Vec<ArmReport>,
    /// How they compare; `None` where no peer ran.
    pub folded_over_peer: Option<Comparison>,
}

/// What keeping the region evicted takes, bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Held {
    /// `folded`, `zram`, `swap`, `zswap` or `get`.
    pub arm: &'static str,
    /// Bytes evicted.
    pub original_bytes: u64,
    /// The same, compressed.
    pub compressed_bytes: u64,
    /// Memory that it takes to keep them, tables and gaps included.
    pub memory_bytes: u64,
}

/// Whether the pager's fault thread may become a real-time one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RealTime {
    /// A thread that tried became one.
    pub permitted: bool,
    /// The kernel's error where none did.
    pub refusal: Option<String>,
}

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Subtracted from every sample of each arm, ns.
    pub clock_overhead_ns: Vec<u64>,
    /// The worker's threads that serve faults, with their scheduling when the last round had ended; between faults it changes.
    pub agent_threads: Vec<Thread>,
    /// Whether the pager may have real-time priority; each run tells how often it had.
    pub real_time: RealTime,
    /// Figures by condition.
    pub conditions: Vec<Condition>,
    /// Where the time of a touch went, by condition, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Steps>,
    /// What the evicted region costs in memory, by arm.
    pub held: Vec<Held>,
    /// Every round.
    pub runs: Vec<Run>,
}

impl Ran for Run {
    type Place<'a> = (usize, Order, &'static str);

    fn place(&self) -> (usize, Order, &'static str) {
        (self.hogs, self.order, self.arm)
    }

    fn repeat(&self) -> usize {
        self.round
    }
}

/// The figures of every condition.
pub(super) fn conditions(runs: &[Run], peer: Option<Rival>) -> Result<Vec<Condition>, BadPairs> {
    let mut keys: Vec<(usize, Order)> = runs.iter().map(|run| (run.hogs, run.order)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| condition(runs, key, peer)).collect()
}

impl Found {
    /// Every round, as a flat row.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.runs.iter().map(|run| Row {
            arm: run.arm,
            hogs: run.hogs,
            order: run.order,
            round: run.round,
            evicted_pages: run.evicted_pages,
            skipped_pages: run.skipped,
            touches: run.touched,
            mean_ns: run.mean_ns,
            pager_mean_ns: run.served.map(|served| served.ns as f64 / run.touched as f64),
            p50_ns: run.touch_ns.quantile(0.5).unwrap_or(0),
            p99_ns: run.touch_ns.quantile(0.99).unwrap_or(0),
            max_ns: run.touch_ns.quantile(1.0).unwrap_or(0),
            waits: run.served.map(|served| served.waits),
            real_time_waits: run.served.map(|served| served.real_time),
        })
    }

    /// Every sample of every round.
    pub fn samples(&self) -> impl Iterator<Item = Sample> + '_ {
        self.runs.iter().flat_map(|run| {
            let Run { arm, hogs, order, round, .. } = *run;
            run.touch_ns.iter().map(move |(touch_ns, count)| Sample {
                arm,
                hogs,
                order,
                round,
                touch_ns,
                count,
            })
        })
    }
}

fn condition(
    runs: &[Run],
    (hogs, order): (usize, Order),
    peer: Option<Rival>,
) -> Result<Condition, BadPairs> {
    let arms = ["folded"].into_iter().chain(peer.map(Rival::name)).filter_map(|arm| {
        let own = of(runs, (hogs, order, arm));
        let waited = own.iter().map(|run| run.served.map(|served| served.ns)).sum::<Option<u64>>();
        Some(ArmReport {
            arm,
            evicted_pages: own.iter().map(|run| run.evicted_pages).sum(),
            skipped_pages: own.iter().map(|run| run.skipped).sum(),
            touch_ns: pooled(runs, (hogs, order, arm), |run| &run.touch_ns).quantiles()?,
            pager_over_program: waited
                .map(|pager| pager as f64 / own.iter().map(|run| run.sum_ns).sum::<u64>().max(1) as f64),
        })
    });
    let compare = |peer: Rival, figure: &dyn Fn(&Run) -> f64| {
        ratio(runs, (hogs, order, "folded"), (hogs, order, peer.name()), figure)
    };
    // A touch can take less than the clock can tell; a ratio needs a number above 0.
    let at = |q: f64| move |run: &Run| run.touch_ns.quantile(q).unwrap_or(0).max(1) as f64;
    let arms: Vec<ArmReport> = arms.collect();
    let folded_over_peer = match peer {
        None => None,
        Some(peer) => Some(Comparison {
            mean: compare(peer, &|run| run.mean_ns.max(1.0))?,
            p50: compare(peer, &at(0.5))?,
            p99: compare(peer, &at(0.99))?,
            p999: compare(peer, &at(0.999))?,
        }),
    };
    Ok(Condition { hogs, order, arms, folded_over_peer })
}

impl fmt::Display for Report<Options> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.found;
        writeln!(
            f,
            "touch of an evicted page by the program's own clock, us, and the pager's count of it  ({} MiB, {} rounds an \
             arm, interleaved)",
            self.options.bytes >> 20,
            self.options.rounds
        )?;
        writeln!(
            f,
            "{:<24}{:>8}{:>8}{:>8}{:>8}{:>9}{:>10}{:>9}{:>9}{:>10}",
            "", "mean", "p50", "p95", "p99", "p99.9", "max", "touches", "pager's", "of clock's"
        )?;
        for condition in &found.conditions {
            let load =
                if condition.hogs == 0 { "idle".to_owned() } else { format!("{} hogs", condition.hogs) };
            let order = format!("{:?}", condition.order).to_lowercase();
            for arm in &condition.arms {
                let q = arm.touch_ns;
                writeln!(
                    f,
                    "{:<24}{:>8}{:>8}{:>8}{:>8}{:>9}{:>10}{:>9}{:>9}{:>10}",
                    format!("{order}, {load}: {}", arm.arm),
                    micros(q.mean),
                    micros(q.p50 as f64),
                    micros(q.p95 as f64),
                    micros(q.p99 as f64),
                    micros(q.p999 as f64),
                    micros(q.max as f64),
                    q.count,
                    arm.pager_over_program.map_or("-".into(), |part| micros(q.mean * part)),
                    arm.pager_over_program.map_or("-".into(), |part| format!("{:.0} %", 100.0 * part)),
                )?;
            }
            if let (Some(ratio), Some(peer)) = (&condition.folded_over_peer, self.options.vs) {
                writeln!(f, "  folded/{}   mean {}   p50 {}", peer.name(), ratio.mean, ratio.p50)?;
                writeln!(f, "                p99  {}   p99.9 {}", ratio.p99, ratio.p999)?;
            }
        }
        for steps in &found.steps {
            writeln!(f, "{steps}")?;
        }
        for held in &found.held {
            writeln!(
                f,
                "{}: {} MiB evicted take {:.1} MiB of memory ({:.1} MiB compressed)",
                held.arm,
                held.original_bytes >> 20,
                held.memory_bytes as f64 / f64::from(1 << 20),
                held.compressed_bytes as f64 / f64::from(1 << 20)
            )?;
        }
        match &found.real_time.refusal {
            Some(error) => {
                write!(f, "real-time priority for the pager: not permitted ({error}; see memfold doctor)")
            }
            None => {
                writeln!(f, "real-time priority for the pager: permitted; it takes it where no CPU is idle")?;
                let used = found
                    .conditions
                    .iter()
                    .map(|condition| found.real_time_use(condition.hogs, condition.order));
                write!(f, "  used for {}", used.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

impl Found {
    /// For how many of the waits under a condition the fault thread was a real-time one, as a clause.
    fn real_time_use(&self, hogs: usize, order: Order) -> String {
        let own = self.runs.iter().filter(|run| (run.hogs, run.order) == (hogs, order));
        let all = own.filter_map(|run| run.served).fold(Served::default(), |sum, served| Served {
            ns: sum.ns + served.ns,
            waits: sum.waits + served.waits,
            real_time: sum.real_time + served.real_time,
        });
        let load = if hogs == 0 { "idle".to_owned() } else { format!("{hogs} hogs") };
        format!("{} of {} waits ({}, {load})", all.real_time, all.waits, format!("{order:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn run(arm: &'static str, round: usize, ns: u64) -> Run {
        let mut touch_ns = Histogram::default();
        (0..100).for_each(|i| touch_ns.record(ns + i));
        Run {
            arm,
            hogs: 0,
            order: Order::Random,
            round,
            evicted_pages: 100,
            touched: 100,
            skipped: 0,
            mean_ns: ns as f64,
            sum_ns: 100 * ns,
            served: (arm == "folded").then_some(Served {
                waits: 90,
                ns: 90 * ns,
                real_time: 30 * round as u64,
            }),
            touch_ns,
        }
    }

    #[test]
    fn rounds_are_compared_pair_by_pair_and_pooled_by_arm() {
        let runs: Vec<Run> = (0..6)
            .flat_map(|round| {
                [
                    run("folded", round, 2000 * (1 + round as u64)),
                    run("zram", round, 1000 * (1 + round as u64)),
                ]
            })
            .collect();
        let condition = condition(&runs, (0, Order::Random), Some(Rival::Zram)).unwrap();
        assert_eq!(condition.arms.len(), 2);
        assert_eq!(condition.arms[0].touch_ns.count, 600);
        let comparison = condition.folded_over_peer.unwrap();
        assert_eq!(comparison.mean.median, 2.0);
        assert!(comparison.mean.differs);
        assert_eq!(condition.arms[0].pager_over_program, Some(0.9));
        assert_eq!(condition.arms[1].pager_over_program, None);
    }

    #[test]
    fn real_time_priority_is_told_by_the_right_to_it_and_the_waits_that_it_was_used_for() {
        let report = |refusal: Option<&str>| {
            let options = Options {
                bytes: 1 << 20,
                rounds: 2,
                hogs: 0,
                vs: Some(Rival::Zram),
                tier: None,
                algorithm: "lz4".into(),
                pin: None,
                steps: false,
                seed: 1,
            };
            let runs = vec![run("folded", 0, 9), run("zram", 0, 9), run("folded", 1, 9), run("zram", 1, 9)];
            let real_time = RealTime { permitted: refusal.is_none(), refusal: refusal.map(str::to_owned) };
            let conditions = conditions(&runs, options.vs).unwrap();
            let found = Found {
                clock_overhead_ns: vec![],
                agent_threads: vec![],
                real_time,
                conditions,
                steps: vec![],
                held: vec![],
                runs,
            };
            Report { schema: None, manifest: Manifest::gather(), options, found }
        };
        let said = report(None).to_string();
        assert!(said.contains("permitted") && said.contains("30 of 180 waits (random, idle)"), "{said}");
        let said = report(Some("EPERM")).to_string();
        assert!(said.contains("not permitted (EPERM") && !said.contains("waits"), "{said}");
    }

    #[test]
    fn without_a_peer_there_is_no_comparison() {
        let condition = condition(&[run("folded", 0, 1000)], (0, Order::Random), None).unwrap();
        assert!(condition.folded_over_peer.is_none());
        assert_eq!(condition.arms.len(), 1);
    }
}
