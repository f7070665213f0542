//! What comes back beside a page that was touched, where pages that are in use lie together ([`memfold_policy::clusters`]).
//!
//! The fault thread brings it while whoever touched the page is being woken. Whether it is in use is settled when the extent's probe is over: if a walk came
//! through meanwhile, nothing of it is known; else it is left alone like what was touched itself.
//!
//! What it is not: for what lies compressed, or under a limit, with a `--policy` or while touches are recorded.

use crate::engine::Engine;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entry::{Entry, State};
use crate::tables::extent::Extent;
use memfold_policy::clusters::{is_sample, Clusters, BEYOND, NEAR};
use memfold_sys::EXTENT_PAGES;

/// The pages from so far before the first to so far beyond the last.
fn around(first: usize, last: usize, far: usize) -> PageRange {
    PageRange::new(first.saturating_sub(far), (last + far + 1).min(EXTENT_PAGES))
}

/// What should come back with page `index` of the extent, which was touched a moment ago while it was set aside. By the fault thread.
pub(crate) fn comes_along(
    engine: &Engine,
    extent: &Extent,
    index: usize,
    clusters: &mut Clusters,
) -> PageSet {
    if !engine.takes_guesses() {
        return PageSet::EMPTY;
    }
    if extent.along.contains(index) {
        clusters.touch();
    }
    let touched = extent.hot.load().and(&around(index, index, NEAR).set());
    let (mut near, mut first, mut last) = (0, index, index);
    for page in touched.pages().filter(|&page| page != index) {
        (near, first, last) = (near + 1, first.min(page), last.max(page));
    }
    if near == 0 {
        return PageSet::EMPTY;
    }
    let (mut foretold, mut samples) = (PageSet::EMPTY, PageSet::EMPTY);
    for page in around(first, last, BEYOND).indices() {
        if extent.entry(page) == Entry::new(State::Aside) {
            foretold.insert(page);
            if is_sample(page) {
                samples.insert(page);
            }
        }
    }
    let pays = clusters.pay(near);
    let new = extent.along.insert(&foretold);
    clusters.foretell(if pays { new.and(&samples) } else { new }.len() as u64);
    if pays {
        foretold.minus(&samples)
    } else {
        PageSet::EMPTY
    }
}

/// The probe in which pages were foretold is over. Those of them that are there are left alone as used, unless the extent was walked through. By the
/// background thread.
pub(crate) fn settle(extent: &Extent, walked: bool) {
    let along = extent.along.load();
    if along.is_empty() {
        return;
    }
    extent.along.remove(&along);
    if !fault_point!(WalkTakenForUse: walked, else false) {
        extent.hot.insert(&along.minus(&extent.away_pages()));
    }
}
