//! The counters as text in the format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).

use crate::counters::Counters;
use crate::governed::Governed;
use std::fmt::Write;

/// Where a metric's value comes from, in base units.
type Source = fn(&Counters) -> f64;

/// Name, kind, meaning, source.
const METRICS: [(&str, &str, &str, Source); 9] = [
    ("managed_bytes", "gauge", "Memory that may be folded.", |c| c.managed_bytes as f64),
    ("resident_bytes", "gauge", "Of that, in memory as it is.", |c| c.resident_bytes as f64),
    ("evicted_bytes", "gauge", "Of that, folded.", |c| c.evicted_bytes as f64),
    ("stored_bytes", "gauge", "Memory of the store.", |c| c.stored_bytes as f64),
    ("pages_compressed_total", "counter", "Pages tried.", |c| c.compressed as f64),
    ("pages_restored_total", "counter", "Pages brought back.", |c| c.restored as f64),
    ("faults_zero_total", "counter", "First touches served.", |c| c.zeroed as f64),
    ("stall_seconds_total", "counter", "Waits for folded memory.", |c| c.stall_ns as f64 / 1e9),
    ("cpu_seconds_total", "counter", "CPU time spent on it.", |c| c.cpu_ns as f64 / 1e9),
];

/// What there is to divide.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// How much.
    pub bytes: u64,
    /// How often it was divided.
    pub divisions: u64,
}

/// The text for these processes.
pub fn text(budget: Option<Budget>, tier: Option<u64>, processes: &[Governed]) -> String {
    let mut out = String::new();
    let head = |out: &mut String, name: &str, kind: &str, help: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP memfold_{name} {help}\n# TYPE memfold_{name} {kind}");
    };
    head(&mut out, "processes", "gauge", "Processes that want to be under the budget.");
    let _ = writeln!(out, "memfold_processes {}", processes.len());
    if let Some(budget) = budget {
        head(&mut out, "budget_bytes", "gauge", "The budget.");
        let _ = writeln!(out, "memfold_budget_bytes {}", budget.bytes);
        head(&mut out, "divisions_total", "counter", "How often the budget was divided.");
        let _ = writeln!(out, "memfold_divisions_total {}", budget.divisions);
    }
    if let Some(size) = tier {
        head(&mut out, "tier_size_bytes", "gauge", "The tier that the processes share.");
        let _ = writeln!(out, "memfold_tier_size_bytes {size}");
        let shared = || processes.iter().filter_map(|one| Some((one.pid, one.tier?)));
        head(&mut out, "tier_file_bytes", "gauge", "What a process has there.");
        for (pid, part) in shared() {
            let _ = writeln!(out, "memfold_tier_file_bytes{{pid=\"{pid}\"}} {}", part.held_bytes);
        }
        head(&mut out, "tier_share_bytes", "gauge", "What a process may have there.");
        for (pid, part) in shared() {
            let _ = writeln!(out, "memfold_tier_share_bytes{{pid=\"{pid}\"}} {}", part.limit);
        }
    }
    for (name, kind, help, read) in METRICS {
        head(&mut out, name, kind, help);
        for one in processes {
            let _ = writeln!(out, "memfold_{name}{{pid=\"{}\"}} {}", one.pid, read(&one.counters));
        }
    }
    head(&mut out, "share_bytes", "gauge", "What a process may keep, by the budget.");
    for one in processes.iter().filter(|one| one.load.limit != u64::MAX) {
        let _ = writeln!(out, "memfold_share_bytes{{pid=\"{}\"}} {}", one.pid, one.load.limit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Load;
    use crate::tier::Part;

    #[test]
    fn a_process_is_shown_with_its_share_if_it_has_one() {
        let one = |pid, limit| Governed {
            pid,
            load: Load { limit, ..Load::default() },
            tier: (pid == 5).then(|| Part { held_bytes: 3, limit: 9, ..Part::default() }),
            counters: Counters { evicted_bytes: 7, stall_ns: 2_500_000, ..Counters::default() },
        };
        let text = text(Some(Budget { bytes: 100, divisions: 3 }), Some(70), &[one(5, 50), one(6, u64::MAX)]);
        for line in ["memfold_processes 2", "memfold_budget_bytes 100", "memfold_divisions_total 3"] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(text.contains("memfold_evicted_bytes{pid=\"5\"} 7\nmemfold_evicted_bytes{pid=\"6\"} 7\n"));
        for line in ["memfold_tier_size_bytes 70", "memfold_tier_share_bytes{pid=\"5\"} 9"] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(text.contains("memfold_stall_seconds_total{pid=\"5\"} 0.0025\n"), "{text}");
        assert!(text.ends_with("memfold_share_bytes{pid=\"5\"} 50\n"), "{text}");
    }
}
