//! Miss-ratio curves: how many requests miss at each of many sizes.
//!
//! LRU's is exact at every size and takes one pass, by stack distances (Mattson et al., 1970). The other policies are run at
//! each size. With a rate below 1 both look only at the pages that a hash picks, at sizes smaller by the same rate
//! (SHARDS; Waldspurger et al., FAST 2015; for policies other than LRU: Waldspurger et al., ATC 2017), with the paper's
//! adjustment that books the difference between expected and sampled requests as hits.
//!
//! Invariants: a curve's sizes ascend; its ratios lie between 0 and 1, and LRU's exact ones never rise.

mod chart;

pub use chart::chart;

use crate::error::TraceError;
use crate::format::Request;
use crate::run::{one, Plan};
use crate::trace::{spread, Trace};
use rayon::prelude::*;
use serde::Serialize;

/// A point of a curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Pages that the cache holds.
    pub size: usize,
    /// Misses per request.
    pub miss_ratio: f64,
}

/// The curve of one policy.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// The policy's name.
    pub policy: String,
    /// Whether every request was looked at.
    pub exact: bool,
    /// Its points, by ascending size.
    pub points: Vec<Point>,
}

/// So many sizes, at least 1, from a thousandth of the pages to all of them, each larger than the one before by the same
/// factor.
pub fn sizes(universe: usize, count: usize) -> Vec<usize> {
    let universe = universe.max(1) as f64;
    let low = (universe / 1000.0).max(1.0);
    let step = |n: usize| low * (universe / low).powf(n as f64 / (count.max(2) - 1) as f64);
    let mut sizes: Vec<usize> = (0..count).map(|n| step(n).round() as usize).collect();
    sizes.dedup();
    sizes
}

/// A part of a trace's pages, and what it stands for.
pub struct Sample {
    /// The picked pages' requests.
    pub trace: Trace,
    /// Requests of the whole trace.
    pub requests: u64,
    /// The share of the pages that was picked.
    pub rate: f64,
}

/// What of a trace [`sample`] looks at.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sampling {
    /// That share of the pages, above 0 and up to 1.
    Rate(f64),
    /// As many pages as fit this number: memory is constant, and the rate sinks as pages come (SHARDS with fixed size).
    Pages(usize),
}

/// Picks pages by a hash of the object, with all their requests.
///
/// With [`Sampling::Pages`] the requests of pages that were dropped later are dropped too, so that all of the sample has
/// the rate that it ended with. Memory is 24 bytes a page that is kept; the sample's requests go to a temporary file.
///
/// # Errors
/// Those of the requests, and those of keeping them; [`TraceError::Empty`] where no page is picked.
pub fn sample(
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    sampling: Sampling,
) -> Result<Sample, TraceError> {
    let (rate, most) = match sampling {
        Sampling::Rate(rate) => (rate, usize::MAX),
        Sampling::Pages(pages) => (1.0, pages),
    };
    let mut picker = Picker::new(rate, most);
    let mut total = 0;
    let mut kept = crate::format::Sink::native(std::io::BufWriter::new(tempfile::tempfile()?))?;
    for request in requests {
        let request = request?;
        total += 1;
        if picker.picks(request.object) {
            kept.push(Request { time: 0, ..request })?;
        }
    }
    let mut file = kept.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    std::io::Seek::rewind(&mut file)?;
    let again = crate::format::Format::Native.read(Box::new(std::io::BufReader::new(file)))?;
    let below = |request: &Result<Request, TraceError>| {
        request.as_ref().map_or(true, |request| spread(request.object) <= picker.threshold)
    };
    Ok(Sample { trace: Trace::number(again.filter(below))?, requests: total, rate: picker.rate() })
}

/// Which pages are looked at: those whose hash is not above a threshold, which sinks when there are too many.
struct Picker {
    threshold: u64,
    most: usize,
    /// The hashes of the pages picked so far, the largest first; kept only where their number is bounded.
    picked: std::collections::BTreeSet<u64>,
}

impl Picker {
    fn new(rate: f64, most: usize) -> Picker {
        Picker { threshold: (rate * u64::MAX as f64) as u64, most, picked: Default::default() }
    }

    fn picks(&mut self, object: u64) -> bool {
        let hash = spread(object);
        if hash > self.threshold {
            return false;
        }
        if self.most < usize::MAX && self.picked.insert(hash) && self.picked.len() > self.most {
            self.picked.pop_last();
            self.threshold = self.picked.last().map_or(0, |&last| last);
        }
        hash <= self.threshold
    }

    fn rate(&self) -> f64 {
        (self.threshold as f64 / u64::MAX as f64).clamp(f64::MIN_POSITIVE, 1.0)
    }
}

impl Sample {
    /// The whole of a trace as its own sample.
    pub fn whole(trace: Trace) -> Sample {
        Sample { requests: trace.requests(), trace, rate: 1.0 }
    }

    /// The pages that the whole trace has, as far as the sample tells.
    pub fn universe(&self) -> usize {
        (self.trace.universe() as f64 / self.rate).round() as usize
    }

    /// A size of the whole as one of the sample.
    fn scaled(&self, size: usize) -> usize {
        ((size as f64 * self.rate).round() as usize).max(1)
    }

    /// Misses of the sample as a ratio of the whole: what was sampled too little or too much counts as hits.
    fn ratio(&self, misses: u64) -> f64 {
        let expected = self.requests as f64 * self.rate;
        (misses as f64 / expected).clamp(0.0, 1.0)
    }

    /// The curves of a plan's policies at its sizes. `done` is called after each run, from several threads.
    ///
    /// # Errors
    /// When the trace cannot be read from its temporary file.
    pub fn curves(&self, plan: &Plan, done: impl Fn() + Sync) -> Result<Vec<Curve>, TraceError> {
        let jobs: Vec<_> = plan
            .policies
            .iter()
            .filter(|spec| spec.name() != "lru")
            .flat_map(|spec| plan.sizes.iter().map(move |&size| (spec, size)))
            .collect();
        if plan.policies.iter().any(memfold_policy::spec::Spec::needs_future) {
            self.trace.next()?;
        }
        let run = |(spec, size)| {
            let row = one(&self.trace, spec, self.scaled(size));
            done();
            Ok(Point { size, miss_ratio: self.ratio(row?.misses) })
        };
        let mut points: Vec<Point> = jobs.into_par_iter().map(run).collect::<Result<_, TraceError>>()?;
        let mut points = points.drain(..);
        plan.policies
            .iter()
            .map(|spec| {
                let points = match spec.name() {
                    "lru" => {
                        let points = self.lru(&plan.sizes)?;
                        plan.sizes.iter().for_each(|_| done());
                        points
                    }
                    _ => points.by_ref().take(plan.sizes.len()).collect(),
                };
                Ok(Curve { policy: spec.to_string(), exact: self.rate == 1.0, points })
            })
            .collect()
    }

    fn lru(&self, sizes: &[usize]) -> Result<Vec<Point>, TraceError> {
        // Hits of a cache of each size, from 0.
        let mut hits = vec![0];
        for distance in stack_distances(&self.trace)? {
            hits.push(hits.last().unwrap_or(&0) + distance);
        }
        let point = |&size: &usize| {
            let hits = hits[self.scaled(size).min(hits.len() - 1)];
            Point { size, miss_ratio: self.ratio(self.trace.requests() - hits) }
        };
        Ok(sizes.iter().map(point).collect())
    }
}

/// How many requests come after how many other pages were requested since the page was last: the number at `n` is of
/// those that an LRU cache of `n` + 1 pages hits and one of `n` misses.
///
/// Distances are counted by a Fenwick tree over the last requests of all pages (Bennett and Kruskal, 1975), which is
/// renumbered when it is full, so it takes 8 bytes a page and none a request.
///
/// # Errors
/// When the trace cannot be read from its temporary file.
pub fn stack_distances(trace: &Trace) -> Result<Vec<u64>, TraceError> {
    let mut distances = vec![0; trace.universe()];
    let mut stack = Stack::new(trace.universe());
    let mut buffer = Vec::new();
    for start in trace.pages().starts() {
        for &page in trace.pages().block(start, &mut buffer)? {
            if let Some(distance) = stack.request(page) {
                distances[distance] += 1;
            }
        }
    }
    Ok(distances)
}

/// No request so far.
const NONE: u32 = u32::MAX;

struct Stack {
    /// Sums over the moments at which some page was requested last.
    tree: Vec<u32>,
    /// When each page was requested last.
    last: Vec<u32>,
    now: usize,
    pages: u32,
}

impl Stack {
    fn new(universe: usize) -> Stack {
        Stack { tree: vec![0; 2 * universe.max(32) + 1], last: vec![NONE; universe], now: 0, pages: 0 }
    }

    /// How many other pages were requested since `page` was, if it was.
    fn request(&mut self, page: u32) -> Option<usize> {
        if self.now + 1 == self.tree.len() {
            self.renumber();
        }
        let last = std::mem::replace(&mut self.last[page as usize], self.now as u32);
        let distance = if last == NONE {
            self.pages += 1;
            None
        } else {
            let older = self.upto(last as usize);
            self.add(last as usize, u32::MAX);
            Some((self.pages - older) as usize)
        };
        self.add(self.now, 1);
        self.now += 1;
        distance
    }

    /// Pages requested last at `moment` or before.
    fn upto(&self, moment: usize) -> u32 {
        let (mut at, mut sum) = (moment + 1, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    fn add(&mut self, moment: usize, difference: u32) {
        let mut at = moment + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(difference);
            at += at & at.wrapping_neg();
        }
    }

    /// Numbers the moments that still matter from 0.
    fn renumber(&mut self) {
        let mut at_moment = vec![NONE; self.now];
        for (page, &last) in self.last.iter().enumerate().filter(|(_, last)| **last != NONE) {
            at_moment[last as usize] = page as u32;
        }
        self.tree.fill(0);
        self.now = 0;
        for page in at_moment.into_iter().filter(|page| *page != NONE) {
            self.last[page as usize] = self.now as u32;
            self.add(self.now, 1);
            self.now += 1;
        }
    }
}

#[cfg(test)]
mod tests;
