//! The counters as text in the format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).

use crate::counters::Counters;
use crate::governed::Governed;
use crate::peer::Shared;
use std::fmt::Write;
use std::sync::Arc;

fn of_served(shared: &Shared) -> Counters {
    let (account, header) = (&shared.account, shared.channel().header());
    let (sizes, done) = (account.sizes(shared.channel()), account.done());
    Counters {
        managed_bytes: sizes.managed,
        resident_bytes: sizes.resident,
        evicted_bytes: sizes.evicted,
        stored_bytes: sizes.stored,
        compressed: done.compressed,
        restored: done.restored,
        zeroed: done.zeroed,
        stall_ns: account.waited_ns(header),
        cpu_ns: account.cpu_ns(),
    }
}

/// Where a metric's value comes from.
type Source = fn(&Counters) -> u64;

/// Name, kind, meaning, source.
const METRICS: [(&str, &str, &str, Source); 9] = [
    ("managed_bytes", "gauge", "Memory that may be folded.", |c| c.managed_bytes),
    ("resident_bytes", "gauge", "Of that, in memory as it is.", |c| c.resident_bytes),
    ("evicted_bytes", "gauge", "Of that, folded.", |c| c.evicted_bytes),
    ("stored_bytes", "gauge", "Memory of the store.", |c| c.stored_bytes),
    ("pages_compressed_total", "counter", "Pages tried.", |c| c.compressed),
    ("pages_restored_total", "counter", "Pages brought back.", |c| c.restored),
    ("faults_zero_total", "counter", "First touches served.", |c| c.zeroed),
    ("stall_nanoseconds_total", "counter", "Waits for folded memory.", |c| c.stall_ns),
    ("cpu_nanoseconds_total", "counter", "CPU time spent on it.", |c| c.cpu_ns),
];

/// What there is to divide.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// How much.
    pub bytes: u64,
    /// How often it was divided.
    pub divisions: u64,
}

/// The text for the processes that are served, and those that fold themselves under the budget.
pub fn text(budget: Option<Budget>, served: &[Arc<Shared>], governed: &[Governed]) -> String {
    let rows = served.iter().map(|shared| (shared.pid, of_served(shared)));
    let rows: Vec<_> = rows.chain(governed.iter().map(|one| (one.pid, one.counters))).collect();
    let mut out = String::new();
    let head = |out: &mut String, name: &str, kind: &str, help: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP memfold_{name} {help}\n# TYPE memfold_{name} {kind}");
    };
    head(&mut out, "processes", "gauge", "Processes that are served.");
    let _ = writeln!(out, "memfold_processes {}", served.len());
    head(&mut out, "governed_processes", "gauge", "Processes that fold themselves, under the budget.");
    let _ = writeln!(out, "memfold_governed_processes {}", governed.len());
    if let Some(budget) = budget {
        head(&mut out, "budget_bytes", "gauge", "The budget.");
        let _ = writeln!(out, "memfold_budget_bytes {}", budget.bytes);
        head(&mut out, "divisions_total", "counter", "How often the budget was divided.");
        let _ = writeln!(out, "memfold_divisions_total {}", budget.divisions);
    }
    for (name, kind, help, read) in METRICS {
        head(&mut out, name, kind, help);
        for (pid, counters) in &rows {
            let _ = writeln!(out, "memfold_{name}{{pid=\"{pid}\"}} {}", read(counters));
        }
    }
    head(&mut out, "share_bytes", "gauge", "What a process may keep, by the budget.");
    let shares = served.iter().map(|shared| (shared.pid, shared.account.limit()));
    let shares = shares.chain(governed.iter().map(|one| (one.pid, one.load.limit)));
    for (pid, limit) in shares.filter(|&(_, limit)| limit != u64::MAX) {
        let _ = writeln!(out, "memfold_share_bytes{{pid=\"{pid}\"}} {limit}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Load;

    #[test]
    fn a_process_that_folds_itself_is_shown_with_its_share_if_it_has_one() {
        let one = |pid, limit| Governed {
            pid,
            load: Load { limit, ..Load::default() },
            counters: Counters { evicted_bytes: 7, ..Counters::default() },
        };
        let text = text(Some(Budget { bytes: 100, divisions: 3 }), &[], &[one(5, 50), one(6, u64::MAX)]);
        for line in [
            "memfold_processes 0",
            "memfold_governed_processes 2",
            "memfold_budget_bytes 100",
            "memfold_divisions_total 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(text.contains("memfold_evicted_bytes{pid=\"5\"} 7\nmemfold_evicted_bytes{pid=\"6\"} 7\n"));
        assert!(text.ends_with("memfold_share_bytes{pid=\"5\"} 50\n"), "{text}");
    }
}
