//! Empty spans that a thread keeps for its next blocks.
//!
//! What it is: three short lists in each heap, for spans up to 64 KiB, 128 KiB and 2 MiB, from which a span of exactly
//! the wanted length is taken without the arena's lock, its pages still resident. What it is not: for blocks of whole
//! pages, whose lengths hardly ever recur; the arena's free runs serve those.
//!
//! Invariants: a kept span has no used block and is in no other list; the thread's exit and `malloc_trim` give all of
//! them back.

use crate::sync::Cell;
use memfold_arena::{settings, Knob, Span};
use memfold_sys::PAGE_SIZE;

/// The longest span in each list, in pages, and how many spans the list may have.
const LISTS: [(usize, Knob); 3] = [
    ((64 << 10) / PAGE_SIZE, Knob::Keep64K),
    ((128 << 10) / PAGE_SIZE, Knob::Keep128K),
    ((2 << 20) / PAGE_SIZE, Knob::Keep2M),
];

/// The lists of a heap, last in first out. All zeros are empty lists.
pub(crate) struct Front {
    first: [Cell<Option<&'static Span>>; LISTS.len()],
    count: [Cell<u64>; LISTS.len()],
}

fn list_of(pages: usize) -> Option<usize> {
    LISTS.iter().position(|(most, _)| pages <= *most)
}

impl Front {
    pub(crate) const fn new() -> Front {
        Front {
            first: [const { Cell::new(None) }; LISTS.len()],
            count: [const { Cell::new(0) }; LISTS.len()],
        }
    }

    /// A kept span of exactly `pages` pages. It is no longer known to be zero anywhere.
    pub(crate) fn take(&self, pages: usize) -> Option<&'static Span> {
        let list = list_of(pages)?;
        let mut link = &self.first[list];
        while let Some(span) = link.get() {
            if span.pages() == pages {
                link.set(span.next.get());
                self.count[list].set(self.count[list].get() - 1);
                span.set_reused();
                return Some(span);
            }
            link = &span.next;
        }
        None
    }

    /// Keeps an empty span. False if there is no room.
    pub(crate) fn put(&self, span: &'static Span) -> bool {
        let Some(list) = list_of(span.pages()) else { return false };
        let count = self.count[list].get();
        if !settings::is_on(Knob::Arena) || count >= settings::get(LISTS[list].1) {
            return false;
        }
        span.next.set(self.first[list].replace(Some(span)));
        self.count[list].set(count + 1);
        true
    }

    /// Hands every kept span to `give`.
    pub(crate) fn empty(&self, give: impl Fn(&'static Span)) {
        for (first, count) in self.first.iter().zip(&self.count) {
            count.set(0);
            let mut span = first.take();
            while let Some(this) = span {
                span = this.next.get();
                give(this);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_arena::{Domain, Kind};

    #[test]
    fn a_kept_span_comes_back_for_its_own_length_and_no_other() {
        let front = Front::new();
        let span = |pages| memfold_arena::alloc(Domain::Pinned, pages, PAGE_SIZE, Kind::Blocks).unwrap();
        let (short, long) = (span(20), span(24));
        assert!(front.put(short) && front.put(long));
        assert!(front.take(22).is_none() && front.take(16).is_none());
        assert!(front.take(20).is_some_and(|found| found.is(short) && !found.zero()));
        assert!(front.take(20).is_none());
        memfold_arena::free(short, 20);
        front.empty(|kept| {
            assert!(kept.is(long));
            memfold_arena::free(kept, 24);
        });
        assert!(front.take(24).is_none());
    }

    #[test]
    fn a_full_list_refuses() {
        let front = Front::new();
        let room = settings::get(Knob::Keep64K) as usize;
        let spans: std::vec::Vec<_> = (0..=room)
            .map(|_| memfold_arena::alloc(Domain::Pinned, 16, PAGE_SIZE, Kind::Blocks).unwrap())
            .collect();
        assert!(spans[..room].iter().all(|span| front.put(span)));
        assert!(!front.put(spans[room]));
        memfold_arena::free(spans[room], 0);
        front.empty(|kept| memfold_arena::free(kept, 0));
    }
}
