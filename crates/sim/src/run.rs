//! Running policies over a trace, all policies and sizes over all cores.

use crate::error::TraceError;
use crate::trace::Trace;
use policy::replace::Spec;
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
    /// The policy's name.
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
        policy: spec.name().to_owned(),
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
        let mut compared = 0;
        for line in expected.lines().skip(1) {
            let [policy, size, _, ratio] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
            let row = one(&trace, &Spec::parse(policy).unwrap(), size.parse().unwrap()).unwrap();
            let exact = ["lru", "fifo", "clock", "arc", "sieve", "belady"].contains(&policy);
            let (ratio, tolerance) = (ratio.parse::<f64>().unwrap(), if exact { 0.00005001 } else { 0.01 });
            println!("{policy} {size}: {:.4}, libCacheSim {ratio:.4}", row.miss_ratio);
            assert!(
                (row.miss_ratio - ratio).abs() <= tolerance,
                "{policy} at {size}: {} and {ratio}",
                row.miss_ratio
            );
            compared += 1;
        }
        assert!(compared >= 18, "only {compared} rows were compared");
    }
}
