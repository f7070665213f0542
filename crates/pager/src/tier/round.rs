//! Where the background thread stands in its rounds for the tier ([`crate::evict::demote`]).

use super::below::JOBS;
use super::remote::AWAY;
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageSet;
use memfold_sys::time::Nanos;
use memfold_sys::Errno;

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
    /// What was said of why.
    pub told: Told,
    /// The cluster at which compaction goes on.
    pub cluster: u32,
    /// Nothing is compacted before then.
    pub compact_after: Nanos,
}

/// What was said of why nothing goes down. Of each kind it is said once: one that is away for a moment may be full later.
#[derive(Clone, Copy, Default)]
pub struct Told {
    full: bool,
    away: bool,
    other: bool,
}

impl Told {
    /// This is about to be said. Whether it was not, yet.
    pub fn is_new(&mut self, error: Errno) -> bool {
        let told = match error {
            Errno(libc::ENOSPC) => &mut self.full,
            AWAY => &mut self.away,
            _ => &mut self.other,
        };
        !core::mem::replace(told, true)
    }
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
