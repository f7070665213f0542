//! The engine's results in the form of fio 3's json+, as [`crate::outcome`] reads them.

use super::{Spec, Times};
use hdrhistogram::Histogram;
use serde_json::{json, Map, Value};
use std::time::Duration;

/// The results of `spec`: times of reads and of writes, ns, over `elapsed`.
pub(super) fn of(spec: &Spec, latencies: &Times, elapsed: Duration) -> Value {
    let direction = |latencies: &Histogram<u64>| {
        let (ios, seconds) = (latencies.len(), elapsed.as_secs_f64());
        let bytes = ios * spec.block_size;
        let percentiles: Map<String, Value> = [50.0, 99.0, 99.9]
            .map(|p| (format!("{p:.6}"), latencies.value_at_percentile(p).into()))
            .into_iter()
            .collect();
        let bins: Map<String, Value> = latencies
            .iter_recorded()
            .map(|step| (step.value_iterated_to().to_string(), step.count_at_value().into()))
            .collect();
        json!({
            "total_ios": ios,
            "io_bytes": bytes,
            "io_kbytes": bytes / 1024,
            "iops": ios as f64 / seconds,
            "bw_bytes": (bytes as f64 / seconds) as u64,
            "runtime": elapsed.as_millis() as u64,
            "lat_ns": {
                "min": latencies.min(), "max": latencies.max(), "mean": latencies.mean(),
                "percentile": percentiles, "bins": bins,
            },
        })
    };
    json!({
        "fio version": concat!("memfold-", env!("CARGO_PKG_VERSION")),
        "jobs": [{
            "jobname": spec.name,
            "error": 0,
            "read": direction(&latencies[0]),
            "write": direction(&latencies[1]),
        }],
    })
}
