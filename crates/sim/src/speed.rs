//! How fast the policies are, beside libCacheSim.

use crate::error::TraceError;
use crate::generate::{Generator, Shape};
use crate::run::one;
use crate::trace::Trace;
use policy::replace::{self, Spec};
use serde::Serialize;
use std::fmt;

/// What libCacheSim does on a virtual machine of 2 CPUs (AMD EPYC), million requests a second, over the trace of
/// [`Options::default`].
const LIBCACHESIM: &[(&str, f64)] = &[
    ("lru", 7.8),
    ("clock", 9.6),
    ("arc", 6.8),
    ("s3fifo", 4.5),
    ("sieve", 12.1),
    ("lirs", 3.7),
    ("twoq", 4.6),
    ("wtinylfu", 3.5),
    ("belady", 4.4),
];

/// What is run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Options {
    /// Requests of the trace.
    pub requests: u64,
    /// Its pages.
    pub pages: u64,
    /// The skew of its Zipf distribution.
    pub skew: f64,
    /// The cache's pages.
    pub size: usize,
    /// Runs of each policy, in turns.
    pub rounds: usize,
    /// What the trace is made from.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { requests: 10_000_000, pages: 1_000_000, skew: 1.0, size: 100_000, rounds: 3, seed: 1 }
    }
}

/// What came of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Its name.
    pub policy: &'static str,
    /// Misses per request.
    pub miss_ratio: f64,
    /// Million requests a second: the median of the runs.
    pub mega_requests_per_second: f64,
    /// libCacheSim's figure for the default options, if there is one.
    pub libcachesim: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was run.
    pub options: Options,
    /// A row a policy.
    pub rows: Vec<Speed>,
}

/// Runs every policy on one thread. `done` is called after each run.
///
/// # Errors
/// When the trace's temporary file cannot be written or read.
pub fn run(options: Options, mut done: impl FnMut()) -> Result<Report, TraceError> {
    let shape = Shape::Zipf { skew: options.skew };
    let trace = Trace::of(Generator::new(shape, options.pages, options.requests, options.seed))?;
    let specs: Vec<Spec> = replace::names().filter_map(|name| Spec::parse(name).ok()).collect();
    let mut runs = vec![Vec::new(); specs.len()];
    for _ in 0..options.rounds {
        for (spec, runs) in specs.iter().zip(&mut runs) {
            runs.push(one(&trace, spec, options.size)?);
            done();
        }
    }
    let row = |(spec, runs): (&Spec, Vec<crate::Row>)| {
        let speeds: Vec<f64> = runs.iter().map(|row| row.requests_per_second / 1e6).collect();
        let peer = LIBCACHESIM.iter().find(|(name, _)| *name == spec.name());
        Speed {
            policy: spec.name(),
            miss_ratio: runs.first().map_or(0.0, |row| row.miss_ratio),
            mega_requests_per_second: stats::median(&speeds).unwrap_or(0.0),
            libcachesim: peer.map(|(_, speed)| *speed),
        }
    };
    Ok(Report { options, rows: specs.iter().zip(runs).map(row).collect() })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { requests, pages, skew, size, rounds, .. } = self.options;
        writeln!(
            f,
            "{requests} Zipf requests (skew {skew}) over {pages} pages, cache of {size}, one thread, median of {rounds}\n"
        )?;
        writeln!(
            f,
            "{:<10} {:>10} {:>14} {:>12} {:>6}",
            "policy", "miss ratio", "M requests/s", "libCacheSim", "ratio"
        )?;
        for row in &self.rows {
            let speed = row.mega_requests_per_second;
            write!(f, "{:<10} {:>10.4} {:>14.1}", row.policy, row.miss_ratio, speed)?;
            match row.libcachesim {
                Some(peer) => writeln!(f, " {peer:>12.1} {:>6.1}", speed / peer)?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_row_and_the_published_ones_their_peer() {
        let options = Options { requests: 3000, pages: 300, size: 30, rounds: 1, ..Options::default() };
        let mut runs = 0;
        let report = run(options, || runs += 1).unwrap();
        assert_eq!((report.rows.len(), runs), (replace::names().count(), replace::names().count()));
        let text = report.to_string();
        assert!(text.contains("sieve") && text.contains("12.1"), "{text}");
        assert!(report.rows.iter().all(|row| row.miss_ratio > 0.0 && row.miss_ratio < 1.0));
    }
}
