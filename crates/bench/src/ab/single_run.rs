//! One run of one workload in one arm.

use super::daemon::Daemon;
use super::metrics::Metrics;
use super::{Arm, Options};
use crate::backing;
use crate::control::{histogram, Peer};
use crate::launch::{plain, Folding};
use crate::process::{resident, Memory};
use crate::worker::{Cost, Job, Program, Worker};
use crate::workload::{Cold, Kind, Workload, WorkloadReport};
use crate::zram::Zram;
use anyhow::{anyhow, ensure, Result};
use memfold_inspect::{Counters, Pages};
use memfold_pager::config::{Setting, SWITCH};
use memfold_pager::control::Mode;
use memfold_stats::Histogram;
use memfold_sys::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What one run found; a raw file each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The workload.
    pub workload: Kind,
    /// Number of the repeat, from 0.
    pub repeat: usize,
    /// The arm.
    pub arm: Arm,
    /// Its figures; those that compare it with the baseline are filled in when all runs are read.
    pub metrics: Metrics,
    /// Memory over the run.
    pub samples: Vec<Sample>,
    /// Time of every unit, ns.
    pub latencies: Histogram,
}

/// Memory at one moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the run began, ms.
    pub at_ms: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Memory that the zram device takes, bytes.
    pub swap_bytes: u64,
    /// Bytes that the pager has evicted.
    pub evicted_bytes: u64,
    /// Bytes that its store takes for them.
    pub store_bytes: u64,
    /// Bytes that the pager has set aside and not evicted yet.
    #[serde(default)]
    pub aside_bytes: u64,
    /// Bytes that are cold, by the workload's own account; `None` in runs of versions that did not keep it.
    #[serde(default)]
    pub cold_bytes: Option<u64>,
    /// What was foreseen until then; zeros in runs of versions that did not keep it.
    #[serde(default)]
    pub foreseen: Foreseen,
}

/// Pages that were foreseen, at the first touch of others or by time, since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreseen {
    /// Brought ahead of their touch.
    pub predicted: u64,
    /// Touched then, as samples tell.
    pub hit: u64,
    /// Not touched.
    pub wasted: u64,
}

impl From<&Pages> for Foreseen {
    fn from(pages: &Pages) -> Foreseen {
        Foreseen {
            predicted: pages.predicted + pages.periods_predicted,
            hit: pages.predicted_hit + pages.periods_hit,
            wasted: pages.predicted_wasted + pages.periods_wasted,
        }
    }
}

const PAUSE: Duration = Duration::from_millis(50);

/// What is in force around a worker of an arm.
struct Around {
    folding: Option<Folding>,
    daemon: Option<Daemon>,
    zram: Option<Zram>,
}

/// Carries out one run.
pub(super) fn run(
    program: &Program,
    options: &Options,
    workload: Kind,
    arm: Arm,
    repeat: usize,
) -> Result<Run> {
    let around = Around::of(program, options, arm)?;
    let seed = options.measures.seed.wrapping_add(repeat as u64);
    let measures = options.measures.of(workload);
    backing::back(2 * measures.bytes as u64);
    let job = Workload { page_out: arm == Arm::Zram, seed, ..measures };
    let mut worker =
        Worker::start(program, &Job::Workload(job), |command| match (&around.folding, &around.daemon) {
            (Some(folding), _) => folding.apply(command),
            (None, Some(daemon)) => daemon.apply(command),
            (None, None) => plain(command),
        })?;
    worker.receive::<()>()?;
    let pid = worker.pid();
    let peer = around.control_dir().map(|dir| folded(dir, pid)).transpose()?;
    let daemon_cpu = || around.daemon.as_ref().map(Daemon::cpu_ns).transpose();
    let (before, daemon_before) = (peer.as_ref().map(Seen::of).transpose()?, daemon_cpu()?);
    let (report, samples) =
        watched(&mut worker, |start| sample(pid, start, peer.as_ref(), around.zram.as_ref()))?;
    let (after, daemon_after) = (peer.as_ref().map(Seen::of).transpose()?, daemon_cpu()?);
    // Before it ends: afterwards there is nobody left to ask.
    let memory = Memory::of(pid)?;
    let daemon = around.daemon.as_ref().map(|daemon| Memory::of(daemon.pid())).transpose()?;
    let cost = worker.finish()?;
    let mut metrics = Metrics::default();
    fill_unit_metrics(&mut metrics, &report);
    metrics.daemon_own_bytes = daemon.map(|memory| memory.anonymous_bytes as f64);
    fill_host_metrics(&mut metrics, &cost, &memory, &samples);
    if let (Some(before), Some(after)) = (before, after) {
        ensure!(after.counters.pages.lost == 0, "the pager reports {} lost pages", after.counters.pages.lost);
        let of_daemon = daemon_after.unwrap_or(0) - daemon_before.unwrap_or(0);
        fill_pager_metrics(&mut metrics, &before, &after, of_daemon, &report, &samples);
    }
    if arm == Arm::Zram {
        metrics.zram_evict_cpu_pct = Some(percent(report.watcher_cpu_ns, report.elapsed_ns));
    }
    Ok(Run { workload, repeat, arm, metrics, samples, latencies: report.latencies })
}

impl Around {
    fn of(program: &Program, options: &Options, arm: Arm) -> Result<Around> {
        let mut around = Around { folding: None, daemon: None, zram: None };
        match arm {
            Arm::Baseline | Arm::Null => {}
            Arm::Pager | Arm::NoForesight => {
                let foresight = SWITCH[usize::from(arm == Arm::Pager)];
                let folding = Folding::new(&program.library)?
                    .set(Setting::StartAt, "0")
                    .set(Setting::Foresight, foresight);
                let settings = options.measures.settings();
                around.folding = Some(
                    settings.into_iter().fold(folding, |folding, (name, value)| folding.set(name, &value)),
                );
            }
            Arm::Daemon => around.daemon = Some(Daemon::start(&program.path, options.measures.settings())?),
            // Twice the region: pages that came back may keep their slots in swap.
            Arm::Zram => {
                around.zram = Some(Zram::start(2 * options.measures.bytes as u64 + (64 << 20), "lz4")?)
            }
        }
        Ok(around)
    }

    /// Where the control page of a folded worker is.
    fn control_dir(&self) -> Option<&Path> {
        let folding = self.folding.as_ref().map(Folding::control_dir);
        folding.or(self.daemon.as_ref().map(Daemon::control_dir))
    }
}

fn folded(control_dir: &Path, pid: u32) -> Result<Peer> {
    let peer = Peer::of(control_dir, pid, Duration::from_secs(5))?;
    peer.await_folded(Duration::from_secs(5))?;
    Ok(peer)
}

/// The pager's account at one moment.
struct Seen {
    /// When it was brought up to date, ns.
    at: u64,
    counters: Counters,
    waits: Histogram,
    restores: Histogram,
}

impl Seen {
    /// As it is from now on: the account is brought up to date several times a second, and what it says between is old.
    fn of(peer: &Peer) -> Result<Seen> {
        let mut now = peer.now()?;
        if now.mode != Mode::Idle {
            now = peer.await_count(Duration::from_secs(10))?;
        }
        let at = if now.mode == Mode::Idle { memfold_sys::time::now().0 } else { now.updated_ns };
        let (waits, restores) = (histogram(&now.fault), histogram(&now.restore));
        Ok(Seen { at, counters: now.counters(), waits, restores })
    }
}

/// Lets the worker run and takes samples until it answers.
fn watched(
    worker: &mut Worker,
    sample: impl Fn(Instant) -> Option<Sample> + Sync,
) -> Result<(WorkloadReport, Vec<Sample>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (start, start_ns, mut samples) = (Instant::now(), memfold_sys::time::now().0, Vec::new());
            while !stop.load(Relaxed) {
                samples.extend(sample(start));
                sleep(PAUSE);
            }
            (start_ns, samples)
        });
        let report = worker.ask::<WorkloadReport>(&());
        stop.store(true, Relaxed);
        let (start_ns, mut samples) = sampler.join().map_err(|_| anyhow!("the sampling thread panicked"))?;
        let report = report?;
        ensure!(!samples.is_empty(), "the run was over before its memory was looked at");
        note_cold(&mut samples, start_ns, &report.cold);
        Ok((report, samples))
    })
}

/// Enters into each sample what was cold then, by the workload's account. The samples began at `start_ns`.
fn note_cold(samples: &mut [Sample], start_ns: u64, account: &[Cold]) {
    for sample in samples {
        let at_ns = start_ns + (sample.at_ms * 1e6) as u64;
        let known = account.partition_point(|cold| cold.at_ns <= at_ns);
        sample.cold_bytes = Some(known.checked_sub(1).map_or(0, |last| account[last].bytes));
    }
}

/// A sample, unless the process has just gone.
fn sample(pid: u32, start: Instant, peer: Option<&Peer>, zram: Option<&Zram>) -> Option<Sample> {
    let Counters { sizes, pages, .. } = peer.and_then(|peer| peer.counters().ok()).unwrap_or_default();
    Some(Sample {
        at_ms: start.elapsed().as_secs_f64() * 1e3,
        resident_bytes: resident(pid).ok()?,
        swap_bytes: zram.and_then(|zram| zram.usage().ok()).map_or(0, |usage| usage.memory),
        evicted_bytes: sizes.evicted_bytes,
        store_bytes: sizes.overhead_bytes,
        aside_bytes: sizes.aside_bytes,
        cold_bytes: None,
        foreseen: Foreseen::from(&pages),
    })
}

fn fill_unit_metrics(metrics: &mut Metrics, report: &WorkloadReport) {
    metrics.units_per_s = Some(report.units_per_s);
    metrics.units = Some(report.units as f64);
    metrics.elapsed_ms = Some(report.elapsed_ns as f64 / 1e6);
    metrics.cold_bytes_mean = Some(report.cold_bytes_mean);
    if let Some(latency) = report.latency_ns {
        metrics.unit_p50_ns = Some(latency.p50 as f64);
        metrics.unit_p95_ns = Some(latency.p95 as f64);
        metrics.unit_p99_ns = Some(latency.p99 as f64);
        metrics.unit_p999_ns = Some(latency.p999 as f64);
    }
}

fn fill_host_metrics(metrics: &mut Metrics, cost: &Cost, memory: &Memory, samples: &[Sample]) {
    metrics.host_user_s = Some(cost.user_s);
    metrics.host_system_s = Some(cost.system_s);
    metrics.host_minor_faults = Some(cost.minor_faults as f64);
    metrics.host_major_faults = Some(cost.major_faults as f64);
    // The kernel's counters may be some pages behind, each by itself.
    let sampled = samples.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0);
    metrics.host_peak_rss_bytes = Some(memory.rss_peak_bytes.max(sampled) as f64);
    metrics.resident_mean_bytes = Some(mean(samples, |sample| sample.resident_bytes));
    metrics.footprint_mean_bytes = Some(mean(samples, Sample::footprint));
    metrics.footprint_end_bytes = samples.last().map(|sample| sample.footprint() as f64);
}

fn fill_pager_metrics(
    metrics: &mut Metrics,
    before: &Seen,
    after: &Seen,
    daemon_cpu_ns: u64,
    report: &WorkloadReport,
    samples: &[Sample],
) {
    let since = |counter: fn(&Counters) -> u64| counter(&after.counters) - counter(&before.counters);
    let count = |counter: fn(&Counters) -> u64| Some(since(counter) as f64);
    let time = after.at - before.at;
    let share = |counter: fn(&Counters) -> u64| Some(percent(since(counter), time));
    let (waits, restores) = (after.waits.since(&before.waits), after.restores.since(&before.restores));
    // Where nothing was waited for, no wait was long.
    let at = |histogram: &Histogram, q| Some(histogram.quantile(q).unwrap_or(0) as f64);
    metrics.stall_pct = share(|c| c.costs.stall_ns);
    metrics.pager_fault_missing_p95_ns = at(&waits, 0.95);
    metrics.pager_fault_missing_p99_ns = at(&waits, 0.99);
    metrics.pager_restore_wall_p95_ns = at(&restores, 0.95);
    metrics.pager_restore_wall_p99_ns = at(&restores, 0.99);
    let own = since(|c| c.costs.cpu_ns());
    metrics.pager_daemon_cpu_pct_total = Some(percent(own + daemon_cpu_ns, time));
    metrics.pager_bg_cpu_pct = share(|c| c.costs.cpu_background_ns);
    metrics.pager_fault_cpu_pct = share(|c| c.costs.cpu_fault_ns);
    metrics.pager_compress_success = count(|c| c.pages.evicted);
    metrics.pager_client_evict_success = count(|c| c.pages.evicted);
    metrics.pager_faults_missing = Some(waits.count() as f64);
    metrics.pager_faults_first_touch = count(|c| c.costs.faults_zero);
    metrics.pager_restore_success = count(|c| c.pages.restored);
    metrics.pager_second_chance = count(|c| c.pages.second_chance);
    metrics.pager_foreseen = count(|c| Foreseen::from(&c.pages).predicted);
    metrics.pager_foreseen_hit = count(|c| Foreseen::from(&c.pages).hit);
    metrics.pager_foreseen_wasted = count(|c| Foreseen::from(&c.pages).wasted);
    metrics.pager_range_add_msgs = count(|c| c.costs.ranges_added);
    metrics.pager_range_del_msgs = count(|c| c.costs.ranges_removed);
    metrics.pager_pages_tracked_peak =
        Some(after.counters.sizes.managed_bytes_peak as f64 / PAGE_SIZE as f64);
    metrics.pager_budget_holds = count(|c| c.costs.budget_holds);
    let evicted = mean(samples, |sample| sample.evicted_bytes);
    // The store's fixed cost is no share of next to nothing.
    if evicted >= f64::from(1 << 20) {
        let store = mean(samples, |sample| sample.store_bytes);
        metrics.pager_store_pct_of_evicted = Some(store * 100.0 / evicted);
    }
    if report.cold_bytes_mean > 0.0 {
        metrics.folded_pct_of_cold = Some(evicted * 100.0 / report.cold_bytes_mean);
    }
    let half = samples.iter().find(|sample| sample.half_is_folded());
    metrics.half_of_cold_folded_s = half.map(|sample| sample.at_ms / 1e3);
}

impl Sample {
    /// Memory that the process takes, wherever it is, bytes.
    pub fn footprint(&self) -> u64 {
        self.resident_bytes + self.swap_bytes
    }

    /// Whether something is cold, and the pager has at least half as much set aside or evicted.
    fn half_is_folded(&self) -> bool {
        let folded = self.aside_bytes + self.evicted_bytes;
        self.cold_bytes.is_some_and(|cold| cold > 0 && 2 * folded >= cold)
    }
}

fn mean(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> f64 {
    samples.iter().map(|sample| of(sample) as f64).sum::<f64>() / samples.len().max(1) as f64
}

fn percent(part_ns: u64, whole_ns: u64) -> f64 {
    part_ns as f64 * 100.0 / whole_ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: f64, aside_bytes: u64, evicted_bytes: u64) -> Sample {
        Sample {
            at_ms,
            resident_bytes: 1,
            swap_bytes: 0,
            evicted_bytes,
            store_bytes: 0,
            aside_bytes,
            cold_bytes: None,
            foreseen: Foreseen::default(),
        }
    }

    #[test]
    fn half_is_folded_from_the_first_moment_on_at_which_half_of_what_is_cold_then_is_away() {
        let mut samples = [
            sample(0.0, 0, 0),
            sample(50.0, 10, 0),
            sample(100.0, 20, 20),
            sample(150.0, 10, 40),
            sample(200.0, 0, 60),
        ];
        let account = [Cold { at_ns: 1_060_000_000, bytes: 100 }, Cold { at_ns: 1_170_000_000, bytes: 200 }];
        note_cold(&mut samples, 1_000_000_000, &account);
        assert_eq!(samples.map(|s| s.cold_bytes.unwrap()), [0, 0, 100, 100, 200]);
        // Not while nothing is cold, not before it is half, and not once more has become cold.
        assert_eq!(samples.map(|s| s.half_is_folded()), [false, false, false, true, false]);
    }
}
