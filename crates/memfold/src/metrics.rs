//! The counters of all folded programs in the text format of Prometheus, version 0.0.4.
//!
//! What `memfold daemon` says of its programs has the same names here. What it does not say follows the conventions
//! (prometheus.io/docs/practices/naming): base units, `_total` behind counters.

use crate::text;
use crate::watch::Seen;
use memfold_inspect::{Latency, Snapshot};
use memfold_pager::control::Mode;
use memfold_pager::why::Why;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{prometheus_text, DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// What each name begins with.
const PREFIX: &str = "memfold";

/// Upper bounds of the buckets of waits and of reads from a tier, ns: from a page that lay whole to a disk.
const BOUNDS: [u64; 13] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// Where a value comes from.
type Source = fn(&Program) -> u64;

/// Name, meaning, source. The first four are the daemon's too.
const GAUGES: [(&str, &str, Source); 11] = [
    ("managed_bytes", "Memory that may be folded.", |p| p.page.sizes.managed_bytes),
    ("resident_bytes", "Of that, in memory as it is.", |p| p.page.sizes.resident_bytes),
    ("evicted_bytes", "Of that, folded.", |p| p.page.sizes.evicted_bytes),
    ("stored_bytes", "What folded memory takes compressed.", |p| p.page.sizes.stored_bytes),
    ("aside_bytes", "Memory that is set aside, still whole.", |p| p.page.sizes.aside_bytes),
    ("cost_bytes", "All that folding takes of memory.", |p| p.page.sizes.overhead_bytes),
    ("saved_bytes", "Folded less the cost.", |p| p.page.sizes.saved_bytes),
    ("tier_bytes", "Of the folded, in the tier below memory.", |p| p.page.sizes.tier_bytes),
    ("tier_file_bytes", "What this takes there.", |p| p.page.sizes.tier_file_bytes),
    ("process_resident_bytes", "All memory of the program in RAM, as the kernel counts it.", |p| p.resident),
    ("paused", "Whether folding is paused.", |p| u64::from(p.page.paused)),
];

/// The same of what only grows; the first three are the daemon's too. `_total` is added to the names.
const COUNTERS: [(&str, &str, Source); 13] = [
    ("pages_compressed", "Pages tried.", |p| {
        p.page.pages.evicted.saturating_add(p.page.pages.incompressible)
    }),
    ("pages_restored", "Pages brought back.", |p| p.page.pages.restored),
    ("faults_zero", "First touches served.", |p| p.page.costs.faults_zero),
    ("pages_set_aside", "Pages set aside.", |p| p.page.pages.set_aside),
    ("pages_second_chance", "Pages touched while they were set aside.", |p| p.page.pages.second_chance),
    ("pages_lost", "Pages whose bytes could not be brought back.", |p| p.page.pages.lost),
    ("limit_waits", "Times that a thread waited for room below the limit.", |p| p.page.costs.limit_waits),
    ("tier_writes", "Clusters written to the tier below memory.", |p| p.page.costs.tier_writes),
    ("tier_reads", "Clusters read from the tier.", |p| p.page.tier_read.count()),
    ("tier_read_bytes", "Bytes read from the tier.", |p| p.page.costs.tier_read_bytes),
    ("tier_asked_bytes", "Of that, what something waited for, as it was in memory.", |p| {
        p.page.costs.tier_asked_bytes
    }),
    ("tier_errors", "Clusters that could not be written or read there.", |p| p.page.costs.tier_errors),
    ("tier_waits", "Waits for an engine on the network that was away.", |p| p.page.costs.tier_waits),
];

/// The same of time, in nanoseconds; `_seconds_total` is added to the names. The first two are the daemon's too.
const TIMES: [(&str, &str, Source); 3] = [
    ("stall", "Waits for folded memory.", |p| p.page.costs.stall_ns),
    ("cpu", "CPU time spent on it.", |p| p.page.costs.cpu_ns()),
    ("tier_wait", "Waits for an engine on the network that was away.", |p| p.page.costs.tier_wait_ns),
];

/// What is said of one program.
#[derive(Clone, Debug)]
struct Program {
    pid: u32,
    name: String,
    user: String,
    resident: u64,
    page: Snapshot,
}

impl Program {
    fn labels(&self) -> [(&'static str, String); 3] {
        [("pid", self.pid.to_string()), ("program", self.name.clone()), ("user", self.user.clone())]
    }

    fn labels_and<const N: usize>(&self, more: [(&'static str, String); N]) -> Vec<(&'static str, String)> {
        self.labels().into_iter().chain(more).collect()
    }
}

#[derive(Debug)]
struct Programs(Vec<Program>);

/// The text for these programs.
pub fn text<'s>(seen: impl Iterator<Item = &'s Seen>) -> String {
    let program = |seen: &Seen| Program {
        pid: seen.pid,
        name: seen.name.clone(),
        user: seen.user.clone(),
        resident: seen.resident,
        page: seen.page.clone(),
    };
    of(Programs(seen.map(program).collect()))
}

fn of(programs: Programs) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(programs));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Collector for Programs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        encoder
            .encode_descriptor("programs", "Folded programs.", None, MetricType::Gauge)?
            .encode_gauge(&(self.0.len() as i64))?;
        self.each(
            &mut encoder,
            "program",
            "What folds it, and how; always 1.",
            MetricType::Gauge,
            |program, metric| {
                let page = &program.page;
                let labels = program.labels_and([
                    ("mode", page.mode.name().to_owned()),
                    ("policy", page.policy.clone()),
                    ("source", page.source.words()),
                    ("reason", if page.mode == Mode::Off { page.reason.clone() } else { String::new() }),
                ]);
                metric.encode_family(&labels)?.encode_gauge(&1i64)
            },
        )?;
        for (name, help, source) in GAUGES {
            self.each(&mut encoder, name, help, MetricType::Gauge, |program, metric| {
                metric.encode_family(&program.labels())?.encode_gauge(&source(program))
            })?;
        }
        for (name, help, source) in COUNTERS {
            self.each(&mut encoder, name, help, MetricType::Counter, |program, metric| {
                metric
                    .encode_family(&program.labels())?
                    .encode_counter::<NoLabelSet, u64, u64>(&source(program), None)
            })?;
        }
        for (name, help, source) in TIMES {
            let name = format!("{name}_seconds");
            self.each(&mut encoder, &name, help, MetricType::Counter, |program, metric| {
                let seconds = source(program) as f64 / 1e9;
                metric
                    .encode_family(&program.labels())?
                    .encode_counter::<NoLabelSet, f64, u64>(&seconds, None)
            })?;
        }
        let help = "What a program may keep, by the budget of the daemon.";
        self.each(&mut encoder, "share_bytes", help, MetricType::Gauge, |program, metric| {
            match program.page.share_in_force {
                0 | u64::MAX => Ok(()),
                share => metric.encode_family(&program.labels())?.encode_gauge(&share),
            }
        })?;
        let help = "What a program may take of the tier that a daemon shares out.";
        self.each(
            &mut encoder,
            "tier_share_bytes",
            help,
            MetricType::Gauge,
            |program, metric| match program.page.tier_share {
                0 => Ok(()),
                share => metric.encode_family(&program.labels())?.encode_gauge(&share),
            },
        )?;
        let help = "Memory in RAM that is not folded, by the reason for that, as counted last.";
        self.each(&mut encoder, "unfolded_bytes", help, MetricType::Gauge, |program, metric| {
            let Some(inventory) = &program.page.inventory else { return Ok(()) };
            for (why, bytes) in inventory.reasons.largest().into_iter().filter(|(why, _)| *why != Why::Own) {
                let labels = program.labels_and([("reason", why.name().to_owned())]);
                metric.encode_family(&labels)?.encode_gauge(&bytes)?;
            }
            Ok(())
        })?;
        let help = "Bytes read from the tier for each that something waited for.";
        self.each(&mut encoder, "tier_read_amplification", help, MetricType::Gauge, |program, metric| {
            let costs = &program.page.costs;
            match text::ratio(costs.tier_read_bytes, costs.tier_asked_bytes) {
                None => Ok(()),
                Some(times) => metric.encode_family(&program.labels())?.encode_gauge(&times),
            }
        })?;
        let help = "Reads of clusters from the tier, one by one.";
        self.each(&mut encoder, "tier_read_seconds", help, MetricType::Histogram, |program, metric| {
            histogram(program, &program.page.tier_read, metric)
        })?;
        let help = "Waits for folded memory, one by one.";
        self.each(&mut encoder, "wait_seconds", help, MetricType::Histogram, |program, metric| {
            histogram(program, &program.page.fault, metric)
        })
    }
}

fn histogram(program: &Program, times: &Latency, metric: &mut MetricEncoder) -> fmt::Result {
    let (sum, count) = (times.sum() as f64 / 1e9, times.count());
    metric.encode_family(&program.labels())?.encode_histogram::<NoLabelSet>(sum, count, &buckets(times), None)
}

impl Programs {
    /// One metric of all programs; not even its name is said where there is none.
    fn each(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        kind: MetricType,
        value: impl Fn(&Program, &mut MetricEncoder) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        self.0.iter().try_for_each(|program| value(program, &mut metric))
    }
}

/// Times by the bounds, seconds; each counts once, in the first bucket that holds it.
fn buckets(times: &Latency) -> Vec<(f64, u64)> {
    let mut counts = [0u64; BOUNDS.len()];
    for (value, count) in times.values() {
        if let Some(bucket) = BOUNDS.iter().position(|bound| value <= *bound) {
            counts[bucket] += count;
        }
    }
    BOUNDS.iter().map(|bound| *bound as f64 / 1e9).zip(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_inspect::fixture;
    use std::sync::atomic::Ordering::Relaxed;

    fn program(name: &str) -> Program {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        fixture::write(&path, |page| {
            page.pid.store(7, Relaxed);
            page.mode.store(Mode::Embedded as u32, Relaxed);
            page.evicted_bytes.store(4096, Relaxed);
            page.stall_ns.store(5_000_000, Relaxed);
            [15_000, 15_000, 70_000, 2_000_000_000].into_iter().for_each(|ns| page.fault_ns.record(ns));
            [80_000, 80_000, 90_000].into_iter().for_each(|ns| page.tier_read_ns.record(ns));
            page.tier_read_bytes.store(3 * 40_960, Relaxed);
            page.tier_asked_bytes.store(6 * 4096, Relaxed);
            page.cpu_background_ns.store(1_000_000_000, Relaxed);
            page.cpu_fault_ns.store(500_000_000, Relaxed);
            page.cpu_tier_ns.store(250_000_000, Relaxed);
            page.inventory.taken_ns.store(1, Relaxed);
            page.inventory.bytes[Why::Young as usize].store(8192, Relaxed);
        });
        let page = crate::pages::snapshot(&path).unwrap();
        Program { pid: 7, name: name.into(), user: "root".into(), resident: 1 << 20, page }
    }

    #[test]
    fn each_program_has_its_line_under_each_name_and_odd_names_are_quoted() {
        let text = of(Programs(vec![program("redis-server"), program("a\"b\\")]));
        for line in [
            "# TYPE memfold_evicted_bytes gauge",
            "# TYPE memfold_pages_restored_total counter",
            "memfold_programs 2",
            "memfold_evicted_bytes{pid=\"7\",program=\"redis-server\",user=\"root\"} 4096",
            "memfold_evicted_bytes{pid=\"7\",program=\"a\\\"b\\\\\",user=\"root\"} 4096",
            "memfold_stall_seconds_total{pid=\"7\",program=\"redis-server\",user=\"root\"} 0.005",
            "memfold_unfolded_bytes{pid=\"7\",program=\"redis-server\",user=\"root\",reason=\"young\"} 8192",
            "memfold_tier_reads_total{pid=\"7\",program=\"redis-server\",user=\"root\"} 3",
            "memfold_tier_read_amplification{pid=\"7\",program=\"redis-server\",user=\"root\"} 5.0",
            "memfold_tier_read_seconds_bucket{pid=\"7\",program=\"redis-server\",user=\"root\",le=\"0.0001\"} 3",
            "memfold_cpu_seconds_total{pid=\"7\",program=\"redis-server\",user=\"root\"} 1.75",
            "memfold_wait_seconds_count{pid=\"7\",program=\"redis-server\",user=\"root\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("memfold_share_bytes{"), "{text}");
    }

    #[test]
    fn what_the_daemon_says_too_has_the_names_that_it_has_there() {
        let daemon = memfold_daemon::metrics::text(None, None, &[]);
        let own = of(Programs(Vec::new()));
        let types = |text: &str| -> Vec<String> {
            text.lines().filter(|l| l.starts_with("# TYPE")).map(String::from).collect()
        };
        let own = types(&own);
        // Of the daemon itself.
        let others = ["memfold_processes ", "memfold_budget_bytes ", "memfold_divisions_total "];
        for line in types(&daemon).iter().filter(|line| others.iter().all(|other| !line.contains(other))) {
            assert!(own.contains(line), "{line}: {own:?}");
        }
    }

    #[test]
    fn waits_are_counted_once_each_and_the_longest_in_no_bucket_but_the_last() {
        let buckets = buckets(&program("x").page.fault);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 3);
        assert_eq!((buckets[1], buckets[3]), ((2e-5, 2), (1e-4, 1)));
    }
}
