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
    /// What threads had waited for of the tier when that was last looked at, bytes, and when that was.
    asked: u64,
    looked: Nanos,
    /// Since when they want much, if they do.
    wanted_since: Nanos,
    /// Whether compaction has given way to them since that look.
    yields: bool,
}

/// Nothing is compacted while threads wait for so many bytes within so long, unless that has gone on for the longest time.
const MUCH: u64 = 1 << 20;
const LOOK: Nanos = Nanos::from_secs(1);
const LONGEST: Nanos = Nanos::from_secs(5);

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
    /// Whether compaction gives way at `now` to threads that have waited for `asked` bytes of the tier so far, whose thread has better things to do then: a
    /// program that wakes will soon want nothing of what would be moved.
    pub fn gives_way(&mut self, now: Nanos, asked: u64) -> bool {
        let passed = now.since(self.looked).0;
        if passed < LOOK.0 {
            return self.yields;
        }
        self.looked = now;
        let much = asked.saturating_sub(core::mem::replace(&mut self.asked, asked)) >= MUCH;
        if !much || passed >= 2 * LOOK.0 {
            self.wanted_since = now;
        }
        self.yields = much && now.since(self.wanted_since).0 <= LONGEST.0;
        self.yields
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compaction_gives_way_while_much_is_wanted_and_not_for_ever() {
        let (mut demotion, mut asked) = (Demotion::default(), 0);
        let mut look = |millis: u64, wanted: u64| {
            asked += wanted;
            demotion.gives_way(Nanos::from_millis(millis), asked)
        };
        assert!(!look(1_000, MUCH - 1));
        // However often it is asked within a second.
        assert!(!look(1_500, MUCH - 1) && look(2_000, 1) && look(2_001, 0) && look(2_999, 0));
        assert!((3..7).all(|second| look(second * 1000, MUCH)));
        assert!(!look(7_000, MUCH) && !look(8_000, MUCH), "it has waited for long enough");
        assert!(!look(14_000, 0));
        assert!(look(15_000, MUCH) && look(15_900, 0) && !look(16_000, 0));
        // What was wanted before a long time in which nobody asked is no more than the beginning.
        assert!(look(90_000, 9 * MUCH) && look(91_000, MUCH));
    }
}
