//! Running policies over a trace, all policies and sizes over all cores.

use crate::error::TraceError;
use crate::trace::Trace;
use memfold_policy::spec::Spec;
use rayon::prelude::*;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The size of a cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Size {
    /// So many pages.
    Pages(usize),
    /// That part, in per cent, of the trace's different pages.
    Percent(f64),
}

impl Size {
    /// Reads `1000` or `10%`: at least one page, or more than 0 and at most 100 per cent.
    pub fn parse(text: &str) -> Option<Size> {
        match text.strip_suffix('%') {
            Some(part) => part.parse().ok().filter(|part| *part > 0.0 && *part <= 100.0).map(Size::Percent),
            None => text.parse().ok().filter(|pages| *pages > 0).map(Size::Pages),
        }
    }

    /// In pages, at least one, for a trace of `universe` different pages.
    pub fn pages(self, universe: usize) -> usize {
        match self {
            Size::Pages(pages) => pages,
            Size::Percent(part) => ((universe as f64 * part / 100.0).round() as usize).max(1),
        }
    }
}

/// What to simulate: every policy at every size.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policies.
    pub policies: Vec<Spec>,
    /// The sizes, in pages.
    pub sizes: Vec<usize>,
}

/// What came of one policy at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy, with the parameters that are not its defaults.
    pub policy: String,
    /// Pages that the cache holds.
    pub size: usize,
    /// Requests of the trace.
    pub requests: u64,
    /// Requests of pages that were not resident.
    pub misses: u64,
    /// Pages that went for others.
    pub evictions: u64,
    /// Misses per request.
    pub miss_ratio: f64,
    /// Requests simulated in a second of this computer's time, on one core beside others.
    pub requests_per_second: f64,
}

/// Runs the plan; rows come by policy, then by size. `done` is called after each, from several threads.
///
/// # Errors
/// When the trace cannot be read from its temporary file.
pub fn simulate(trace: &Trace, plan: &Plan, done: impl Fn() + Sync) -> Result<Vec<Row>, TraceError> {
    let policies = plan.policies.iter();
    let jobs: Vec<_> = policies.flat_map(|spec| plan.sizes.iter().map(move |&size| (spec, size))).collect();
    if plan.policies.iter().any(Spec::needs_future) {
        trace.next()?;
    }
    jobs.into_par_iter().map(|(spec, size)| one(trace, spec, size).inspect(|_| done())).collect()
}

/// Runs one policy at one size.
///
/// # Errors
/// As for [`simulate`].
pub fn one(trace: &Trace, spec: &Spec, size: usize) -> Result<Row, TraceError> {
    let mut policy = spec.make(size, trace.universe());
    let next = if spec.needs_future() { Some(trace.next()?) } else { None };
    let (mut pages_buffer, mut next_buffer) = (Vec::new(), Vec::new());
    let (mut misses, mut busy) = (0, Duration::ZERO);
    for start in trace.pages().starts() {
        let pages = trace.pages().block(start, &mut pages_buffer)?;
        let next = next.map(|next| next.block(start, &mut next_buffer)).transpose()?;
        let began = Instant::now();
        misses += policy.replay(pages, next.unwrap_or_default());
        busy += began.elapsed();
    }
    let requests = trace.requests();
    Ok(Row {
        policy: spec.to_string(),
        size,
        requests,
        misses,
        evictions: misses - policy.resident() as u64,
        miss_ratio: misses as f64 / requests as f64,
        requests_per_second: requests as f64 / busy.as_secs_f64().max(1e-9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use std::path::Path;

    #[test]
    fn a_size_is_pages_or_a_part_of_them() {
        assert_eq!(Size::parse("10%").unwrap().pages(250), 25);
        assert_eq!(Size::parse("0.1%").unwrap().pages(250), 1);
        assert_eq!(Size::parse("1000").unwrap().pages(250), 1000);
        assert!(["0", "0%", "101%", "-1", "ten", ""].iter().all(|text| Size::parse(text).is_none()));
    }

    /// What libCacheSim of October 2024 (`cachesim FILE oracleGeneral POLICY SIZE --ignore-obj-size 1`) makes of the trace
    /// at sizes that the list beside the trace leaves out. LIRS differs in the last digit.
    const FURTHER: &str = "lru,5000,0.8038 fifo,5000,0.8042 clock,5000,0.8032 sieve,5000,0.7886 twoq,5000,0.7717 \
        arc,5000,0.7708 lirs,5000,0.7490 s3fifo,5000,0.7498 lfu,5000,0.7886 belady,5000,0.6262 \
        lru,20000,0.6328 fifo,20000,0.6343 clock,20000,0.6336 sieve,20000,0.5658 twoq,20000,0.6332 arc,20000,0.5657 \
        lirs,20000,0.5153 s3fifo,20000,0.6184 lfu,20000,0.5658 belady,20000,0.4553 \
        lru,40000,0.4303 fifo,40000,0.4316 clock,40000,0.4303 sieve,40000,0.4303 twoq,40000,0.4316 arc,40000,0.4303 \
        lirs,40000,0.4436 s3fifo,40000,0.4303 lfu,40000,0.4303 belady,40000,0.4301 \
        wtinylfu:libcachesim=1,1000,0.8335 wtinylfu:libcachesim=1,5000,0.7739 wtinylfu:libcachesim=1,10000,0.6778 \
        wtinylfu:libcachesim=1,20000,0.5234 wtinylfu:libcachesim=1,40000,0.4423";

    /// The trace and what libCacheSim makes of it lie beside a checkout, not in it.
    #[test]
    fn the_miss_ratios_are_those_of_libcachesim() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
        let path = std::env::var_os("MEMFOLD_TRACES").map_or(data, Into::into);
        let Ok(expected) = std::fs::read_to_string(path.join("cloudPhysicsIO.expected.csv")) else {
            println!("not compared: no traces in {} (MEMFOLD_TRACES names another folder)", path.display());
            return;
        };
        let trace =
            Trace::open(&path.join("cloudPhysicsIO.oracleGeneral.bin"), Format::OracleGeneral).unwrap();
        assert_eq!(trace.requests(), 113_872);
        let listed = expected.lines().skip(1).map(|line| {
            let [policy, size, _, ratio] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
            [policy, size, ratio]
        });
        let further = FURTHER
            .split_whitespace()
            .map(|row| <[&str; 3]>::try_from(row.split(',').collect::<Vec<_>>()).unwrap());
        let mut compared = 0;
        for [policy, size, ratio] in listed.chain(further) {
            let row = one(&trace, &Spec::parse(policy).unwrap(), size.parse().unwrap()).unwrap();
            let tolerance = match policy {
                "lirs" => 0.00015001,
                // Other hashes for the same filter, which is too small for the pages that share it.
                "wtinylfu:libcachesim=1" => 0.006,
                _ => 0.00005001,
            };
            let ratio = ratio.parse::<f64>().unwrap();
            println!("{policy} {size}: {:.4}, libCacheSim {ratio:.4}", row.miss_ratio);
            assert!(
                (row.miss_ratio - ratio).abs() <= tolerance,
                "{policy} at {size}: {} and {ratio}",
                row.miss_ratio
            );
            compared += 1;
        }
        assert!(compared >= 53, "only {compared} rows were compared");
    }
}
