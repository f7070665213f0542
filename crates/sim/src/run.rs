//! Running policies over a trace, all policies and sizes over all cores.

use crate::trace::Trace;
use policy::replace::{Outcome, Spec};
use rayon::prelude::*;
use serde::Serialize;
use std::time::Instant;

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

    /// In pages, at least one.
    pub fn pages(self, trace: &Trace) -> usize {
        match self {
            Size::Pages(pages) => pages,
            Size::Percent(part) => ((trace.universe as f64 * part / 100.0).round() as usize).max(1),
        }
    }
}

/// What to simulate: every policy at every size.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policies.
    pub policies: Vec<Spec>,
    /// The sizes.
    pub sizes: Vec<Size>,
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
    /// Misses per request.
    pub miss_ratio: f64,
    /// Requests simulated in a second of this computer's time, on one core beside others.
    pub requests_per_second: f64,
}

/// Runs the plan; rows come by policy, then by size. `done` is called after each, from several threads.
pub fn simulate(trace: &Trace, plan: &Plan, done: impl Fn() + Sync) -> Vec<Row> {
    let jobs: Vec<_> =
        plan.policies.iter().flat_map(|policy| plan.sizes.iter().map(move |&size| (policy, size))).collect();
    jobs.into_par_iter()
        .map(|(spec, size)| {
            let row = one(trace, spec, size.pages(trace));
            done();
            row
        })
        .collect()
}

fn one(trace: &Trace, spec: &Spec, size: usize) -> Row {
    let mut policy = spec.make(size, trace.universe);
    let began = Instant::now();
    let requests = trace.pages.iter().zip(&trace.next);
    let misses = requests.filter(|&(&page, &next)| policy.request(page, next) != Outcome::Hit).count() as u64;
    let seconds = began.elapsed().as_secs_f64();
    let requests = trace.pages.len() as u64;
    Row {
        policy: spec.name().to_owned(),
        size,
        requests,
        misses,
        miss_ratio: misses as f64 / requests as f64,
        requests_per_second: requests as f64 / seconds.max(1e-9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Format;
    use std::path::Path;

    #[test]
    fn a_size_is_pages_or_a_part_of_them() {
        let trace = Trace { universe: 250, ..Trace::default() };
        assert_eq!(Size::parse("10%").unwrap().pages(&trace), 25);
        assert_eq!(Size::parse("0.1%").unwrap().pages(&trace), 1);
        assert_eq!(Size::parse("1000").unwrap().pages(&trace), 1000);
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
        assert_eq!(trace.pages.len(), 113_872);
        let mut compared = 0;
        for line in expected.lines().skip(1) {
            let [policy, size, _, ratio] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
            let row = one(&trace, &Spec::parse(policy).unwrap(), size.parse().unwrap());
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
