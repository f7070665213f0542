//! What a workload did.

use super::meter::Done;
use super::truth::{Cold, Truth};
use super::Workload;
use memfold_stats::{Histogram, Quantiles};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The result of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// Names this layout.
    pub schema: String,
    /// What was asked for.
    pub options: Workload,
    /// Memory that it kept, bytes.
    pub region_bytes: u64,
    /// Time to take and fill it, ns.
    pub setup_ns: u64,
    /// Time of the run, ns.
    pub elapsed_ns: u64,
    /// Units that were done.
    pub units: u64,
    /// Units a second.
    pub units_per_s: f64,
    /// How long a unit took, ns; `None` where units are not timed.
    pub latency_ns: Option<Quantiles>,
    /// Mean of the bytes that had not been touched for the cold age, by the workload's own account.
    pub cold_bytes_mean: f64,
    /// The same bytes each time that they changed.
    pub cold: Vec<Cold>,
    /// CPU time of the thread that kept that account and had the kernel swap, ns.
    pub watcher_cpu_ns: u64,
    /// Every unit's time, ns, to three digits.
    pub latencies: Histogram,
}

impl WorkloadReport {
    pub(super) fn new(
        options: &Workload,
        region: usize,
        setup_ns: u64,
        elapsed: Duration,
        done: &Done,
        truth: Truth,
    ) -> WorkloadReport {
        WorkloadReport {
            schema: "memfold-workload-1".into(),
            options: *options,
            region_bytes: region as u64,
            setup_ns,
            elapsed_ns: elapsed.as_nanos() as u64,
            units: done.units,
            units_per_s: done.units as f64 / elapsed.as_secs_f64(),
            latency_ns: done.latencies.quantiles(),
            cold_bytes_mean: truth.cold_bytes_mean,
            cold: truth.cold,
            watcher_cpu_ns: truth.cpu_ns,
            latencies: done.latencies.clone(),
        }
    }
}

impl fmt::Display for WorkloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        writeln!(
            f,
            "{}  {} units in {:.1} s, {:.1} a second",
            self.options.kind.name(),
            self.units,
            self.elapsed_ns as f64 / 1e9,
            self.units_per_s
        )?;
        if let Some(latency) = &self.latency_ns {
            let us = |ns: u64| ns as f64 / 1e3;
            writeln!(
                f,
                "  a unit  p50 {:.1} us   p95 {:.1} us   p99 {:.1} us   p99.9 {:.1} us   max {:.1} us",
                us(latency.p50),
                us(latency.p95),
                us(latency.p99),
                us(latency.p999),
                us(latency.max)
            )?;
        }
        writeln!(
            f,
            "  memory  {:.0} MiB, of which {:.0} MiB were cold (untouched for {} ms) on average",
            mib(self.region_bytes as f64),
            mib(self.cold_bytes_mean),
            self.options.cold_millis
        )
    }
}
