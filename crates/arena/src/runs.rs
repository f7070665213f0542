//! The free runs of one domain, found by length, and by age where they may be resident.
//!
//! What it is: lists by length with a bitmap of those that are not empty, and one list in the order of
//! freeing for decommit. What it is not: aware of neighbours or chunks; coalescing is [`crate::pool`]'s.
//!
//! Invariants: a run is in exactly one length list if it is in here; it is in the age list if and only if
//! its `dirty` count, of the bits that its chunk has for its pages, is not zero; `dirty_pages` is the sum of those counts.

use crate::counters::COUNTERS;
use crate::span::Span;
use memfold_sys::PAGE_SIZE;

/// Lists 0 to 63 hold the lengths 1 to 64 pages, one each; then four to each power of two.
const LISTS: usize = 128;
const EXACT: usize = 64;

/// How many runs of the first list, where some may be too short, are tried for the best fit.
const TRIES: usize = 16;

/// How many runs are looked at, beginning with the one that was freed last, for one that is resident.
const RECENT: usize = 32;

/// A run that is resident and longer by no more than this part ends that search.
const CLOSE: usize = 16;

pub(crate) struct FreeRuns {
    lists: [Option<&'static Span>; LISTS],
    occupied: u128,
    oldest: Option<&'static Span>,
    newest: Option<&'static Span>,
    pub(crate) dirty_pages: usize,
    /// The present, in ticks; runs that are put in are stamped with it.
    pub(crate) tick: u16,
}

fn list_of(pages: usize) -> usize {
    if pages <= EXACT {
        return pages - 1;
    }
    let log = pages.ilog2() as usize;
    (EXACT + (log - 6) * 4 + ((pages >> (log - 2)) & 3)).min(LISTS - 1)
}

impl FreeRuns {
    pub(crate) const fn new() -> FreeRuns {
        FreeRuns { lists: [None; LISTS], occupied: 0, oldest: None, newest: None, dirty_pages: 0, tick: 0 }
    }

    /// A run of at least `pages`, still in the lists: near the shortest there is, or a long one that is resident, which saves
    /// a fault for each of its pages.
    pub(crate) fn find(&self, pages: usize) -> Option<&'static Span> {
        let list = list_of(pages);
        if list < EXACT {
            return self.first_from(list);
        }
        self.resident(pages).or_else(|| self.fitting(pages, list))
    }

    /// A run of at least `pages` of which half of these may be resident: the one with the most, and of such the shortest.
    fn resident(&self, pages: usize) -> Option<&'static Span> {
        let mut best: Option<(usize, usize, &'static Span)> = None;
        let mut next = self.newest;
        for _ in 0..RECENT {
            let Some(run) = next else { break };
            let missing = pages.saturating_sub(run.dirty.get() as usize);
            let fits = run.pages() >= pages && missing <= pages / 2;
            if fits && best.is_none_or(|(least, length, _)| (missing, run.pages()) < (least, length)) {
                best = Some((missing, run.pages(), run));
                if missing == 0 && run.pages() - pages <= pages / CLOSE {
                    break;
                }
            }
            next = run.older.get();
        }
        best.map(|(.., run)| run)
    }

    /// A run of at least `pages`, near the shortest; `list` is theirs.
    fn fitting(&self, pages: usize, list: usize) -> Option<&'static Span> {
        let mut best: Option<&'static Span> = None;
        let mut run = self.lists[list];
        for _ in 0..TRIES {
            let Some(candidate) = run else { break };
            if candidate.pages() >= pages && best.is_none_or(|b| candidate.pages() < b.pages()) {
                best = Some(candidate);
            }
            run = candidate.next.get();
        }
        best.or_else(|| self.first_from(list + 1))
    }

    fn first_from(&self, list: usize) -> Option<&'static Span> {
        if list >= LISTS {
            return None;
        }
        let candidates = self.occupied >> list << list;
        if candidates == 0 {
            return None;
        }
        self.lists[candidates.trailing_zeros() as usize]
    }

    /// The run that was freed longest ago among those that may be resident.
    pub(crate) fn oldest(&self) -> Option<&'static Span> {
        self.oldest
    }

    pub(crate) fn insert(&mut self, run: &'static Span) {
        let list = list_of(run.pages());
        let head = self.lists[list];
        run.prev.set(None);
        run.next.set(head);
        if let Some(head) = head {
            head.prev.set(Some(run));
        }
        self.lists[list] = Some(run);
        self.occupied |= 1 << list;
        if run.dirty.get() > 0 {
            run.freed.set(self.tick);
            self.dirty_pages += run.dirty.get() as usize;
            COUNTERS.cached_bytes.add(run.dirty.get() as usize * PAGE_SIZE);
            run.newer.set(None);
            run.older.set(self.newest);
            match self.newest {
                Some(newest) => newest.newer.set(Some(run)),
                None => self.oldest = Some(run),
            }
            self.newest = Some(run);
        }
    }

    pub(crate) fn remove(&mut self, run: &'static Span) {
        let list = list_of(run.pages());
        if let Some(next) = run.next.get() {
            next.prev.set(run.prev.get());
        }
        match run.prev.get() {
            Some(prev) => prev.next.set(run.next.get()),
            None => {
                self.lists[list] = run.next.get();
                if self.lists[list].is_none() {
                    self.occupied &= !(1 << list);
                }
            }
        }
        if run.dirty.get() > 0 {
            self.dirty_pages -= run.dirty.get() as usize;
            COUNTERS.cached_bytes.sub(run.dirty.get() as usize * PAGE_SIZE);
            match run.newer.get() {
                Some(newer) => newer.older.set(run.older.get()),
                None => self.newest = run.older.get(),
            }
            match run.older.get() {
                Some(older) => older.newer.set(run.newer.get()),
                None => self.oldest = run.newer.get(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{Domain, Kind};
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn longer_runs_never_go_to_earlier_lists() {
        for pages in 1..20_000 {
            assert!(list_of(pages) <= list_of(pages + 1), "{pages}");
        }
    }

    fn run(pages: usize, dirty: u32) -> &'static Span {
        let span = Box::leak(Box::new(Span::blank()));
        span.describe(Domain::Managed, None, 0, pages, Kind::Free);
        span.dirty.set(dirty);
        span
    }

    #[test]
    fn a_long_run_is_the_one_that_is_resident() {
        let mut runs = FreeRuns::new();
        let all = [(1000, 0), (3000, 900), (2000, 900), (1200, 400), (900, 900)]
            .map(|(pages, dirty)| run(pages, dirty));
        all.iter().for_each(|run| runs.insert(run));
        let mut found = |pages| {
            let run = runs.find(pages).expect("there is one");
            runs.remove(run);
            (run.pages(), run.dirty.get())
        };
        assert_eq!(found(1000), (2000, 900), "the shorter of two that have the most");
        assert_eq!(found(1000), (3000, 900));
        assert_eq!(found(1000), (1000, 0), "where none has half of it, the shortest");
        assert_eq!(found(900), (900, 900));
        assert_eq!(found(800), (1200, 400));
    }

    proptest! {
        #[test]
        fn a_search_finds_a_run_that_is_long_enough_if_a_longer_list_has_one(
            lengths in prop::collection::vec(1..9000usize, 0..60),
            wanted in 1..9000usize,
        ) {
            let mut runs = FreeRuns::new();
            for pages in &lengths {
                runs.insert(run(*pages, 0));
            }
            match runs.find(wanted) {
                Some(found) => prop_assert!(found.pages() >= wanted && lengths.contains(&found.pages())),
                None => prop_assert!(lengths.iter().all(|pages| list_of(*pages) <= list_of(wanted))),
            }
        }

        #[test]
        fn the_oldest_dirty_run_comes_first_whatever_was_removed_between(
            dirty in prop::collection::vec(0..3u32, 1..40),
            removed in prop::collection::vec(any::<bool>(), 40),
        ) {
            let mut runs = FreeRuns::new();
            let all: Vec<_> = dirty.iter().map(|dirty| run(5, *dirty)).collect();
            all.iter().for_each(|run| runs.insert(run));
            let kept: Vec<_> = all.iter().zip(&removed).filter(|(_, gone)| !**gone).map(|(run, _)| *run).collect();
            all.iter().zip(&removed).filter(|(_, gone)| **gone).for_each(|(run, _)| runs.remove(run));
            prop_assert_eq!(runs.dirty_pages, kept.iter().map(|run| run.dirty.get() as usize).sum::<usize>());
            for expected in kept.iter().filter(|run| run.dirty.get() > 0) {
                let oldest = runs.oldest().expect("a dirty run is missing");
                prop_assert!(oldest.is(expected));
                runs.remove(oldest);
            }
            prop_assert!(runs.oldest().is_none());
        }
    }
}
