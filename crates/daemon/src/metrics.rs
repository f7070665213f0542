//! The counters as text in the format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).

use crate::peer::Shared;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

type Read = fn(&Shared) -> &AtomicU64;

/// Name, kind, meaning, source.
const METRICS: [(&str, &str, &str, Read); 9] = [
    ("managed_bytes", "gauge", "Memory that may be folded.", |s| &s.channel().header().managed_bytes),
    ("resident_bytes", "gauge", "Of that, in memory as it is.", |s| &s.channel().header().resident_bytes),
    ("evicted_bytes", "gauge", "Of that, folded.", |s| &s.channel().header().evicted_bytes),
    ("stored_bytes", "gauge", "Memory of the store.", |s| &s.channel().header().store_bytes),
    ("pages_compressed_total", "counter", "Pages tried.", |s| &s.channel().header().compressed),
    ("pages_restored_total", "counter", "Pages brought back.", |s| &s.channel().header().restored),
    ("faults_zero_total", "counter", "First touches served.", |s| &s.channel().header().zeroed),
    ("stall_nanoseconds_total", "counter", "Waits for folded memory.", |s| &s.channel().header().stall_ns),
    ("cpu_nanoseconds_total", "counter", "CPU time spent on it.", |s| &s.channel().header().cpu_ns),
];

/// The text for these processes.
pub fn text(budget: Option<u64>, peers: &[(u32, Arc<Shared>)]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ =
        writeln!(out, "# HELP memfold_processes Processes that are served.\n# TYPE memfold_processes gauge");
    let _ = writeln!(out, "memfold_processes {}", peers.len());
    if let Some(budget) = budget {
        let _ = writeln!(out, "# HELP memfold_budget_bytes The budget.\n# TYPE memfold_budget_bytes gauge");
        let _ = writeln!(out, "memfold_budget_bytes {budget}");
    }
    for (name, kind, help, read) in METRICS {
        let _ = writeln!(out, "# HELP memfold_{name} {help}\n# TYPE memfold_{name} {kind}");
        for (pid, shared) in peers {
            let _ = writeln!(out, "memfold_{name}{{pid=\"{pid}\"}} {}", read(shared).load(Relaxed));
        }
    }
    out
}
