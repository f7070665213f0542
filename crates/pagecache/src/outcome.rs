//! What fio says came of a job: its JSON, of fio 2 and fio 3, as one set of figures.
//!
//! Everything is as fio computed it wherever there is one job and one direction. Several are put together: rates add up,
//! means are weighted by requests, and percentiles come from the histograms of `--output-format=json+`, or, where there
//! are none, are the worst of the parts.
//!
//! Sources: fio's HOWTO, "JSON+ output"; fio 3 reports nanoseconds and bytes a second where fio 2 had microseconds and
//! KiB a second.

use anyhow::{bail, ensure, Context, Result};
use memfold_stats::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The figures of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What measured, such as `fio-3.33`.
    pub engine: String,
    /// Requests done.
    pub ios: u64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Mean time from submission to completion, ns.
    pub mean_ns: f64,
    /// Median of it, ns.
    pub p50_ns: Option<f64>,
    /// 99th percentile, ns.
    pub p99_ns: Option<f64>,
    /// 99.9th percentile, ns.
    pub p999_ns: Option<f64>,
    /// All times, ns, in fio's buckets; empty unless the JSON has them.
    #[serde(skip)]
    pub latencies: Histogram,
}

/// One direction of one job.
struct Part {
    ios: u64,
    iops: f64,
    bytes_per_second: f64,
    bytes: u64,
    mean_ns: f64,
    percentiles: [Option<f64>; 3],
    latencies: Histogram,
}

impl Outcome {
    /// Reads fio's JSON from a file.
    ///
    /// # Errors
    /// When it cannot be read or is not fio's.
    pub fn read(path: &Path) -> Result<Outcome> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        parse(&text).with_context(|| format!("{name} is not the JSON of a finished fio run"))
    }

    /// MiB a second.
    pub fn mib_per_second(&self) -> f64 {
        self.bytes_per_second / f64::from(1 << 20)
    }
}

/// Reads fio's JSON.
///
/// # Errors
/// When it is not fio's, or fio failed.
pub fn parse(text: &str) -> Result<Outcome> {
    // fio writes warnings into the same file, before the JSON.
    let start = text.find('{').context("it holds no JSON")?;
    let document: Value = serde_json::from_str(&text[start..]).context("its JSON is damaged")?;
    let engine = document["fio version"].as_str().context("it lacks fio's version")?.to_owned();
    let jobs = document["jobs"].as_array().filter(|jobs| !jobs.is_empty()).context("it lists no jobs")?;
    let (mut parts, mut read_bytes, mut written_bytes) = (Vec::new(), 0, 0);
    for job in jobs {
        if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
            bail!("fio failed with error {error} ({})", std::io::Error::from_raw_os_error(error as i32));
        }
        for (direction, bytes) in [("read", &mut read_bytes), ("write", &mut written_bytes)] {
            if let Some(part) = part(&job[direction]) {
                *bytes += part.bytes;
                parts.push(part);
            }
        }
    }
    ensure!(!parts.is_empty(), "no request was done");
    let mut outcome = together(&parts);
    (outcome.engine, outcome.read_bytes, outcome.written_bytes) = (engine, read_bytes, written_bytes);
    Ok(outcome)
}

fn together(parts: &[Part]) -> Outcome {
    let ios: u64 = parts.iter().map(|part| part.ios).sum();
    let mut latencies = Histogram::default();
    parts.iter().for_each(|part| latencies.merge(&part.latencies));
    let complete = parts.iter().all(|part| part.latencies.count() > 0);
    let percentile = |index: usize, q: f64| match parts {
        [only] => only.percentiles[index],
        _ if complete => latencies.quantile(q).map(|ns| ns as f64),
        _ => parts.iter().filter_map(|part| part.percentiles[index]).max_by(f64::total_cmp),
    };
    Outcome {
        ios,
        iops: parts.iter().map(|part| part.iops).sum(),
        bytes_per_second: parts.iter().map(|part| part.bytes_per_second).sum(),
        mean_ns: parts.iter().map(|part| part.mean_ns * part.ios as f64).sum::<f64>() / ios as f64,
        p50_ns: percentile(0, 0.5),
        p99_ns: percentile(1, 0.99),
        p999_ns: percentile(2, 0.999),
        latencies,
        ..Outcome::default()
    }
}

fn part(direction: &Value) -> Option<Part> {
    let ios = direction["total_ios"].as_u64().filter(|ios| *ios > 0)?;
    // fio 3 counts in nanoseconds and says so in the key.
    let modern = direction["lat_ns"].is_object();
    let (unit, lat, clat) = if modern { (1.0, "lat_ns", "clat_ns") } else { (1e3, "lat", "clat") };
    let (lat, clat) = (&direction[lat], &direction[clat]);
    let with_percentiles = if lat["percentile"].is_object() { lat } else { clat };
    let percentiles = ["50.000000", "99.000000", "99.900000"]
        .map(|key| with_percentiles["percentile"][key].as_f64().map(|value| value * unit));
    let bins = with_percentiles["bins"].as_object();
    let bins = bins.into_iter().flatten().filter_map(|(value, count)| {
        Some(((value.parse::<u64>().ok()? as f64 * unit) as u64, count.as_u64()?))
    });
    let kib = |key: &str| direction[key].as_f64().map(|kib| kib * 1024.0);
    Some(Part {
        ios,
        iops: direction["iops"].as_f64()?,
        bytes_per_second: direction["bw_bytes"].as_f64().or_else(|| kib("bw"))?,
        bytes: kib(if modern { "io_kbytes" } else { "io_bytes" })? as u64,
        mean_ns: lat["mean"].as_f64()? * unit,
        percentiles,
        latencies: Histogram::from(bins.collect::<Vec<_>>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By hand, in the form of fio 2.16: microseconds, and KiB a second.
    const FIO_2: &str = r#"{"fio version": "fio-2.16", "jobs": [{"jobname": "w", "error": 0,
        "read": {"io_bytes": 4000, "bw": 800, "iops": 200.0, "total_ios": 1000,
            "lat": {"min": 2, "max": 90, "mean": 12.5},
            "clat": {"mean": 11.0, "percentile": {"50.000000": 10, "99.000000": 60, "99.900000": 80}}},
        "write": {"io_bytes": 0, "bw": 0, "iops": 0.0, "total_ios": 0, "lat": {"mean": 0.0}, "clat": {}}}]}"#;

    /// By hand, in the form of fio 3.33's json+: nanoseconds and bytes; reads and writes.
    const FIO_3: &str = r#"note: this is from a hand
        {"fio version": "fio-3.33", "jobs": [{"jobname": "w", "error": 0,
        "read": {"io_bytes": 4096000, "io_kbytes": 4000, "bw_bytes": 819200, "bw": 800, "iops": 200.0, "total_ios": 1000,
            "clat_ns": {"mean": 11000.0},
            "lat_ns": {"mean": 12500.0, "percentile": {"50.000000": 10000, "99.000000": 60000, "99.900000": 80000},
                "bins": {"10000": 900, "60000": 95, "80000": 5}}},
        "write": {"io_bytes": 1024000, "io_kbytes": 1000, "bw_bytes": 204800, "bw": 200, "iops": 50.0, "total_ios": 250,
            "clat_ns": {"mean": 1.0},
            "lat_ns": {"mean": 100000.0, "percentile": {"50.000000": 90000, "99.000000": 200000, "99.900000": 200000},
                "bins": {"90000": 200, "200000": 50}}}}]}"#;

    #[test]
    fn the_units_of_fio_2_are_understood() {
        let outcome = parse(FIO_2).unwrap();
        assert_eq!((outcome.engine.as_str(), outcome.ios, outcome.iops), ("fio-2.16", 1000, 200.0));
        assert_eq!((outcome.bytes_per_second, outcome.read_bytes), (800.0 * 1024.0, 4000 * 1024));
        assert_eq!(outcome.mean_ns, 12_500.0);
        assert_eq!((outcome.p50_ns, outcome.p99_ns), (Some(10_000.0), Some(60_000.0)));
        assert_eq!(outcome.p999_ns, Some(80_000.0));
    }

    #[test]
    fn reads_and_writes_of_fio_3_are_put_together_from_their_histograms() {
        let outcome = parse(FIO_3).unwrap();
        assert_eq!((outcome.ios, outcome.iops), (1250, 250.0));
        assert_eq!(outcome.bytes_per_second, 1_024_000.0);
        assert_eq!((outcome.read_bytes, outcome.written_bytes), (4000 * 1024, 1000 * 1024));
        assert_eq!(outcome.mean_ns, (12_500.0 * 1000.0 + 100_000.0 * 250.0) / 1250.0);
        // 900 of 1250 take 10 us; the largest 50 take 200 us, which begins at the 1201st.
        assert_eq!((outcome.p50_ns, outcome.p99_ns), (Some(10_000.0), Some(200_000.0)));
        assert_eq!(outcome.latencies.count(), 1250);
    }

    #[test]
    fn one_direction_keeps_the_percentiles_that_fio_computed() {
        let outcome = parse(&FIO_3.replace("\"total_ios\": 250", "\"total_ios\": 0")).unwrap();
        assert_eq!((outcome.p50_ns, outcome.p99_ns), (Some(10_000.0), Some(60_000.0)));
        assert_eq!((outcome.mean_ns, outcome.written_bytes), (12_500.0, 0));
    }

    #[test]
    fn several_jobs_without_histograms_have_the_worst_of_their_percentiles() {
        let document: Value = serde_json::from_str(FIO_2).unwrap();
        let mut second = document["jobs"][0].clone();
        second["read"]["clat"]["percentile"]["99.000000"] = 70.into();
        let mut both = document;
        both["jobs"].as_array_mut().unwrap().push(second);
        let outcome = parse(&both.to_string()).unwrap();
        assert_eq!((outcome.iops, outcome.mean_ns, outcome.p99_ns), (400.0, 12_500.0, Some(70_000.0)));
    }

    #[test]
    fn what_is_no_result_says_why() {
        let say = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(say("").contains("no JSON"));
        assert!(say("{\"fio version\": \"fio-3\"").contains("damaged"));
        assert!(say("{}").contains("fio's version"));
        assert!(say("{\"fio version\": \"fio-3\", \"jobs\": []}").contains("no jobs"));
        assert!(say(&FIO_2.replace("\"error\": 0", "\"error\": 28")).contains("No space left"));
        assert!(say(&FIO_2.replace("\"total_ios\": 1000", "\"total_ios\": 0")).contains("no request"));
    }

    proptest! {
        #[test]
        fn damaged_json_is_an_error_and_never_a_panic(cut in 0usize..2000, put in any::<String>()) {
            let mut text = FIO_3.to_owned();
            let at = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            text.replace_range(at.., &put);
            let _ = parse(&text);
        }
    }
}
