//! Where the background thread stands in its rounds for the tier ([`crate::evict::demote`]).

use super::below::JOBS;
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageSet;
use memfold_sys::time::Nanos;

/// How far demotion has come.
#[derive(Clone, Copy, Default)]
pub struct Demotion {
    /// The address at which the round over all extents goes on.
    pub at: usize,
    /// When the round began, and when the next may.
    pub next: Nanos,
    /// The extent that each job is of: its address.
    pub extents: [usize; JOBS],
    /// Its pages that were stored anew since the job was handed over. Their entries may well be the words that they were: what a page gives up in the
    /// store is the likeliest place for it.
    pub anew: [PageSet; JOBS],
    /// The tier takes no more before then.
    pub full_until: Nanos,
    /// Whether that was said.
    pub told: bool,
    /// The cluster at which compaction goes on.
    pub cluster: u32,
    /// Nothing is compacted before then.
    pub compact_after: Nanos,
}

impl Demotion {
    /// A job of this extent is handed over.
    pub fn hand_over(&mut self, job: usize, extent: usize) {
        (self.extents[job], self.anew[job]) = (extent, PageSet::EMPTY);
    }

    /// A page of the extent was stored, with what it holds now.
    pub fn note_stored(&mut self, extent: usize, page: usize) {
        let jobs = self.extents.iter().zip(&mut self.anew).filter(|(of, _)| **of == extent);
        fault_point!(StoredAnewUnseen: jobs.for_each(|(_, anew)| anew.insert(page)));
    }
}
