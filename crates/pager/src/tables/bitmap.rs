//! Pages of one extent: consecutive ones, and sets of them.

use crate::sync::{AtomicU64, Ordering::*};
use memfold_sys::{EXTENT_PAGES, PAGE_SIZE};

const WORDS: usize = EXTENT_PAGES.div_ceil(64);

/// Consecutive pages of an extent, by their indices: from `lo` up to but not including `hi`, which is [`EXTENT_PAGES`] at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    /// The first.
    pub lo: usize,
    /// The one behind the last.
    pub hi: usize,
}

impl PageRange {
    /// All pages.
    pub const ALL: PageRange = PageRange { lo: 0, hi: EXTENT_PAGES };

    /// From `lo` up to but not including `hi`.
    pub fn new(lo: usize, hi: usize) -> PageRange {
        debug_assert!(lo <= hi && hi <= EXTENT_PAGES);
        PageRange { lo, hi }
    }

    /// A page alone.
    pub fn one(index: usize) -> PageRange {
        PageRange::new(index, index + 1)
    }

    /// Up to so many pages from `lo` on, as far as the extent goes.
    pub fn from(lo: usize, pages: usize) -> PageRange {
        PageRange::new(lo, lo.saturating_add(pages).min(EXTENT_PAGES))
    }

    /// How many.
    pub fn len(self) -> usize {
        self.hi - self.lo
    }

    /// How many bytes they are.
    pub fn bytes(self) -> usize {
        self.len() * PAGE_SIZE
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.lo == self.hi
    }

    /// One index after the other.
    pub fn indices(self) -> core::ops::Range<usize> {
        self.lo..self.hi
    }

    /// In the low half of a word: the first page in 16 bits, the page after the last in the others.
    pub fn packed(self) -> u64 {
        (self.hi as u64) << 16 | self.lo as u64
    }

    /// Whether all of them lie in the range of which the low half of a word tells.
    pub fn lies_in(self, word: u64) -> bool {
        (word & 0xFFFF) as usize <= self.lo && self.hi <= (word >> 16 & 0xFFFF) as usize
    }

    /// The same from `lo` on.
    pub fn starting_at(self, lo: usize) -> PageRange {
        PageRange::new(lo, self.hi)
    }

    /// Those before the page, and the others.
    pub fn split_at(self, index: usize) -> (PageRange, PageRange) {
        (PageRange::new(self.lo, index), PageRange::new(index, self.hi))
    }

    /// As a set.
    pub fn set(self) -> PageSet {
        PageSet::range(self.lo, self.hi)
    }
}

/// A set of page indices below [`EXTENT_PAGES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSet([u64; WORDS]);

impl PageSet {
    /// All pages.
    pub const ALL: PageSet = PageSet([u64::MAX; WORDS]);

    /// No page.
    pub const EMPTY: PageSet = PageSet([0; WORDS]);

    /// The pages from `lo` up to but not including `hi`.
    pub fn range(lo: usize, hi: usize) -> PageSet {
        debug_assert!(lo <= hi && hi <= EXTENT_PAGES);
        PageSet(core::array::from_fn(|w| {
            let below = |n: usize| match n.saturating_sub(w * 64) {
                bits @ 0..=63 => (1u64 << bits) - 1,
                _ => u64::MAX,
            };
            below(hi) & !below(lo)
        }))
    }

    /// The pages of which `is` is true.
    pub fn of(is: impl Fn(usize) -> bool) -> PageSet {
        let mut set = PageSet::EMPTY;
        (0..EXTENT_PAGES).filter(|&page| is(page)).for_each(|page| set.insert(page));
        set
    }

    /// How many pages it has.
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Whether the page is in it.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }

    /// Adds a page.
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// Pages in both.
    pub fn and(&self, other: &PageSet) -> PageSet {
        PageSet(core::array::from_fn(|w| self.0[w] & other.0[w]))
    }

    /// Pages in either.
    pub fn or(&self, other: &PageSet) -> PageSet {
        PageSet(core::array::from_fn(|w| self.0[w] | other.0[w]))
    }

    /// Pages of this set that the other has not.
    pub fn minus(&self, other: &PageSet) -> PageSet {
        PageSet(core::array::from_fn(|w| self.0[w] & !other.0[w]))
    }

    /// The first run of consecutive pages at or above `from`.
    pub fn next_run(&self, from: usize) -> Option<PageRange> {
        let lo = self.find(from, true)?;
        Some(PageRange { lo, hi: self.find(lo, false).unwrap_or(EXTENT_PAGES) })
    }

    /// All runs of consecutive pages.
    pub fn runs(self) -> impl Iterator<Item = PageRange> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let run = self.next_run(from)?;
            from = run.hi;
            Some(run)
        })
    }

    /// Its pages, one index after the other.
    pub fn pages(self) -> impl Iterator<Item = usize> {
        self.runs().flat_map(PageRange::indices)
    }

    fn find(&self, from: usize, value: bool) -> Option<usize> {
        let mut page = from;
        while page < EXTENT_PAGES {
            let word = if value { self.0[page / 64] } else { !self.0[page / 64] } >> (page % 64);
            if word != 0 {
                return Some(page + word.trailing_zeros() as usize);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}

/// A [`PageSet`] that threads share, word by word. Its users order their accesses by an extent's lock or
/// by the page entries; the operations themselves are relaxed.
#[derive(Default)]
pub struct AtomicPageSet([AtomicU64; WORDS]);

impl AtomicPageSet {
    /// A copy.
    pub fn load(&self) -> PageSet {
        PageSet(core::array::from_fn(|w| self.0[w].load(Relaxed)))
    }

    /// Adds all pages of `set`. Returns those that were not there: of several threads that add a page, one is told of it.
    pub fn insert(&self, set: &PageSet) -> PageSet {
        PageSet(core::array::from_fn(|w| match set.0[w] {
            0 => 0,
            bits => bits & !self.0[w].fetch_or(bits, Relaxed),
        }))
    }

    /// Removes all pages of `set`. Returns those that were there, each to one thread only.
    pub fn remove(&self, set: &PageSet) -> PageSet {
        PageSet(core::array::from_fn(|w| match set.0[w] {
            0 => 0,
            bits => bits & self.0[w].fetch_and(!bits, Relaxed),
        }))
    }

    /// Whether the page is in it.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64].load(Relaxed) >> (page % 64) & 1 != 0
    }

    /// Adds one page.
    pub fn add(&self, page: usize) {
        self.0[page / 64].fetch_or(1 << (page % 64), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeSet, vec::Vec};

    proptest! {
        #[test]
        fn runs_list_exactly_the_pages_of_the_set(ranges in prop::collection::vec((0..512usize, 0..80usize), 0..12)) {
            let mut set = PageSet::EMPTY;
            let mut model = BTreeSet::new();
            for (lo, len) in ranges {
                let hi = (lo + len).min(512);
                set = set.or(&PageSet::range(lo, hi));
                model.extend(lo..hi);
            }
            let listed: Vec<usize> = set.pages().collect();
            prop_assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), model.len());
            let shared = AtomicPageSet::default();
            prop_assert_eq!(shared.insert(&set), set);
            prop_assert_eq!(shared.insert(&PageSet::ALL), PageSet::ALL.minus(&set));
            shared.remove(&PageSet::ALL.minus(&set));
            prop_assert_eq!(shared.remove(&PageSet::range(100, 300)), set.and(&PageSet::range(100, 300)));
            prop_assert_eq!(shared.remove(&PageSet::range(100, 300)), PageSet::EMPTY);
            prop_assert_eq!(shared.load(), set.minus(&PageSet::range(100, 300)));
        }
    }

    #[test]
    fn a_page_that_two_remove_at_once_counts_for_one_of_them() {
        let shared = AtomicPageSet::default();
        let both = std::sync::Barrier::new(2);
        let remove = || {
            (0..2_000).map(|_| {
                both.wait();
                shared.insert(&PageSet::ALL);
                both.wait();
                shared.remove(&PageSet::ALL).len()
            })
        };
        let removed: usize = std::thread::scope(|scope| {
            let other = scope.spawn(|| remove().sum::<usize>());
            remove().sum::<usize>() + other.join().unwrap()
        });
        assert_eq!(removed, 2_000 * EXTENT_PAGES);
    }
}
