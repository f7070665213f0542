//! The free runs of one domain, found by length, and by age where they may be resident.
//!
//! What it is: lists by length with a bitmap of those that are not empty, and one list in the order of
//! freeing for decommit. What it is not: aware of neighbours or chunks; coalescing is [`crate::pool`]'s.
//!
//! Invariants: a run is in exactly one length list if it is in here; it is in the age list if and only if
//! its `dirty` count is not zero; `dirty_pages` is the sum of those counts.

use crate::counters::COUNTERS;
use crate::span::Span;
use sys::PAGE_SIZE;

/// Lists 0 to 63 hold the lengths 1 to 64 pages, one each; then four to each power of two.
const LISTS: usize = 128;
const EXACT: usize = 64;

/// How many runs of the first list, where some may be too short, are tried for the best fit.
const TRIES: usize = 16;

pub(crate) struct FreeRuns {
    lists: [Option<&'static Span>; LISTS],
    occupied: u128,
    oldest: Option<&'static Span>,
    newest: Option<&'static Span>,
    pub(crate) dirty_pages: usize,
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
        FreeRuns { lists: [None; LISTS], occupied: 0, oldest: None, newest: None, dirty_pages: 0 }
    }

    /// A run of at least `pages`, near the shortest there is, still in the lists.
    pub(crate) fn find(&self, pages: usize) -> Option<&'static Span> {
        let list = list_of(pages);
        if list < EXACT {
            return self.first_from(list);
        }
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

    #[test]
    fn longer_runs_never_go_to_earlier_lists() {
        for pages in 1..20_000 {
            assert!(list_of(pages) <= list_of(pages + 1), "{pages}");
        }
    }

    #[test]
    fn every_run_of_a_later_list_is_long_enough() {
        for pages in 1..9_000usize {
            let shortest_later = (pages..).find(|p| list_of(*p) > list_of(pages)).unwrap();
            assert!(shortest_later > pages);
        }
    }
}
