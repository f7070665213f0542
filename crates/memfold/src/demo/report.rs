//! What the demo found: as a table and as JSON.

use super::load::{self, Slice};
use super::plan::Plan;
use crate::text::{bytes, count, nanos, percent, table};
use anyhow::Context;
use hdrhistogram::Histogram;
use memfold_inspect::{Pages, Percentiles, Snapshot};
use memfold_stats::Ratio;
use serde::Serialize;
use std::time::Duration;

const SCHEMA: &str = "memfold-demo/1";

/// What was measured of one server.
#[derive(Clone, Debug)]
pub struct Arm {
    throughputs: Vec<f64>,
    residents: Vec<u64>,
    latency: Histogram<u64>,
}

impl Default for Arm {
    fn default() -> Self {
        Arm { throughputs: Vec::new(), residents: Vec::new(), latency: load::histogram() }
    }
}

impl Arm {
    /// Counts a turn, and the resident memory at its end.
    ///
    /// # Errors
    /// The histograms do not fit together, which they do.
    pub fn add(&mut self, slice: &Slice, resident: u64) -> anyhow::Result<()> {
        self.throughputs.push(slice.throughput);
        self.residents.push(resident);
        self.latency.add(&slice.latency).context("the latencies of a turn")
    }

    fn figures(&self) -> Figures {
        let mean = |n: &[u64]| n.iter().sum::<u64>() / (n.len() as u64).max(1);
        Figures {
            resident_bytes_mean: mean(&self.residents),
            resident_bytes_max: self.residents.iter().copied().max().unwrap_or(0),
            requests_per_second: memfold_stats::median(&self.throughputs).unwrap_or(0.0),
            latency_ns: Latencies {
                count: self.latency.len(),
                p50: self.latency.value_at_quantile(0.5),
                p99: self.latency.value_at_quantile(0.99),
                p999: self.latency.value_at_quantile(0.999),
                max: self.latency.max(),
            },
            requests_per_second_each: self.throughputs.clone(),
            resident_bytes_each: self.residents.clone(),
        }
    }
}

/// Figures of one server. Memory is all that the process has resident, the pager's store included.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    resident_bytes_mean: u64,
    resident_bytes_max: u64,
    /// Median over the turns.
    requests_per_second: f64,
    latency_ns: Latencies,
    /// Every turn, in order.
    requests_per_second_each: Vec<f64>,
    /// At the end of every turn, in order.
    resident_bytes_each: Vec<u64>,
}

/// From sending a request, with those of its pipeline, to its answer.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latencies {
    count: u64,
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

/// What the demo found. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    wall_ns: u64,
    records: u64,
    value_bytes: u64,
    hot: String,
    cold_age: String,
    max_stall_pct: String,
    max_cpu_pct: String,
    plain: Figures,
    folded: Figures,
    /// Mean resident memory of the plain server less that of the folded one.
    saved_bytes: i64,
    saved_pct: f64,
    /// Requests per second, folded to plain, pair by pair, with its 95 % interval.
    throughput: Option<Ratio>,
    /// The share of time that the folded server waited while both were measured, in per cent.
    stall_pct: f64,
    /// Pages restored while both were measured.
    restored_under_load: u64,
    /// All pages of the folded server, the reading back included.
    #[serde(serialize_with = "memfold_inspect::fields")]
    pages: Pages,
    fault_ns: Percentiles,
    restore_ns: Percentiles,
    agent_cpu_ns: u64,
    verified: Verified,
}

/// How the reading back ended.
#[derive(Clone, Copy, Debug, Serialize)]
struct Verified {
    values: u64,
    plain_different: u64,
    folded_different: u64,
}

impl Report {
    /// Puts the report together. The pages are those before and after the measuring, and at the end.
    pub fn new(
        plan: &Plan,
        value_bytes: u64,
        plain: Arm,
        folded: Arm,
        [before, settled, after]: [Snapshot; 3],
        [plain_different, folded_different]: [u64; 2],
    ) -> Report {
        let throughput = Ratio::of(&folded.throughputs, &plain.throughputs).ok();
        let (plain, folded) = (plain.figures(), folded.figures());
        let saved = plain.resident_bytes_mean as i64 - folded.resident_bytes_mean as i64;
        let measured_ns = settled.updated_ns.saturating_sub(before.updated_ns);
        Report {
            schema: SCHEMA,
            wall_ns: 0,
            records: plan.records,
            value_bytes,
            hot: format!("{:?}", plan.hot).to_lowercase(),
            cold_age: plan.cold_age.clone(),
            max_stall_pct: plan.max_stall.clone(),
            max_cpu_pct: plan.max_cpu.clone(),
            saved_bytes: saved,
            saved_pct: saved as f64 * 100.0 / plain.resident_bytes_mean.max(1) as f64,
            throughput,
            stall_pct: percent(settled.costs.stall_ns.saturating_sub(before.costs.stall_ns), measured_ns),
            restored_under_load: settled.pages.restored.saturating_sub(before.pages.restored),
            pages: after.pages,
            fault_ns: after.fault.percentiles(),
            restore_ns: after.restore.percentiles(),
            agent_cpu_ns: after.costs.cpu_ns(),
            verified: Verified { values: plan.records, plain_different, folded_different },
            plain,
            folded,
        }
    }

    /// Adds how long it all took.
    pub fn finish(mut self, wall: Duration) -> Report {
        self.wall_ns = wall.as_nanos() as u64;
        self
    }

    /// Whether every value came back right.
    pub fn is_right(&self) -> bool {
        self.verified.plain_different == 0 && self.verified.folded_different == 0 && self.pages.lost == 0
    }

    /// Whether anything was folded at all.
    pub fn has_folded(&self) -> bool {
        self.pages.evicted > 0
    }

    /// As a table.
    pub fn human(&self) -> String {
        let (p, f) = (&self.plain, &self.folded);
        let row = |cells: [String; 4]| cells.to_vec();
        let ratio = self.throughput.map_or(String::new(), |r| match r.interval {
            Some(i) => format!("x {:.3} ({:.3} to {:.3})", r.median, i.low, i.high),
            None => format!("x {:.3}", r.median),
        });
        let right =
            |different: u64| format!("{} of {}", count(self.records - different), count(self.records));
        let head = table(&[
            row(["".into(), "plain".into(), "folded".into(), "".into()]),
            row([
                "resident memory".into(),
                bytes(p.resident_bytes_mean),
                bytes(f.resident_bytes_mean),
                format!("{:+.1} %", -self.saved_pct),
            ]),
            row([
                "requests per second".into(),
                count(p.requests_per_second as u64),
                count(f.requests_per_second as u64),
                ratio,
            ]),
            row(["latency p50".into(), nanos(p.latency_ns.p50), nanos(f.latency_ns.p50), "".into()]),
            row(["latency p99".into(), nanos(p.latency_ns.p99), nanos(f.latency_ns.p99), "".into()]),
            row([
                "values right".into(),
                right(self.verified.plain_different),
                right(self.verified.folded_different),
                "".into(),
            ]),
        ]);
        let fault = &self.fault_ns;
        format!(
            "{head}\n\
             {} of JSON in {} records, 5 % of the keys ({}) busy, 16 requests at a time; cold after {}\n\
             {} pages folded, {} second chances; {} restored under load, {} in all\n\
             a fault takes p50 {}, p95 {}, p99 {}, max {} ({} faults); stalled {:.3} % of the time under load\n\
             agent threads used {} of CPU; the demo took {}\n",
            bytes(self.value_bytes),
            count(self.records),
            self.hot,
            self.cold_age,
            count(self.pages.evicted),
            count(self.pages.second_chance),
            count(self.restored_under_load),
            count(self.pages.restored),
            nanos(fault.p50),
            nanos(fault.p95),
            nanos(fault.p99),
            nanos(fault.max),
            count(fault.count),
            self.stall_pct,
            nanos(self.agent_cpu_ns),
            nanos(self.wall_ns),
        )
    }
}
