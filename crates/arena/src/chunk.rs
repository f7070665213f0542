//! The record of a chunk: whole extents taken from the kernel in one mapping.
//!
//! What it is: where the chunk lies and which of its pages may hold frames. A shared chunk is cut into runs;
//! a dedicated one holds a single large block, which may so be moved and resized by `mremap`.
//!
//! Invariants: a page of a *free* run that is neither dirty nor left reads as zero and has no frame; no page is both. The bits of
//! a handed-out span say how it was when it was handed out.

use crate::kind::Domain;
use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};

/// The largest shared chunk in bytes, and so the largest block that is cut from one; larger keeps more from going back.
pub(crate) const MAX_SHARED: usize = 32 * EXTENT_SIZE;

const WORDS: usize = MAX_SHARED / PAGE_SIZE / 64;

/// What a chunk is mapped for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Blocks of all kinds.
    Shared,
    /// The same, and in the first place blocks longer than an extent; and whether those before were used from end to end, where that is known.
    Long(Option<bool>),
    /// One block alone.
    Dedicated,
}

/// A chunk; but for its number, its fields belong to the holder of its domain's lock.
pub struct Chunk {
    pub(crate) base: Cell<usize>,
    pub(crate) len: Cell<usize>,
    pub(crate) domain: Cell<Domain>,
    pub(crate) dedicated: Cell<bool>,
    /// The kernel was asked for huge pages in it.
    pub(crate) huge: Cell<bool>,
    /// Bytes before and behind what may be touched: none, but for a chunk with guards.
    pub(crate) lead: Cell<usize>,
    pub(crate) tail: Cell<usize>,
    pub(crate) next: Cell<Option<&'static Chunk>>,
    pub(crate) prev: Cell<Option<&'static Chunk>>,
    /// Its place in the order in which chunks were put into lists, 0 while it is in none. Who has no lock of its domain may read it.
    pub(crate) number: AtomicU64,
    /// Pages that may hold frames, which may go back.
    dirty: [Cell<u64>; WORDS],
    /// Pages that may hold something, and are not to go back again before they were used: the kernel has been lent them, or keeps them locked.
    left: [Cell<u64>; WORDS],
}

// SAFETY: all fields are read and written under the lock of the chunk's domain.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// A record whose bits are all clear. `dedicated` chunks never use the bits.
    pub(crate) fn describe(&self, domain: Domain, base: usize, len: usize, dedicated: bool) {
        self.base.set(base);
        self.len.set(len);
        self.domain.set(domain);
        self.dedicated.set(dedicated);
        self.huge.set(false);
        self.lead.set(0);
        self.tail.set(0);
        if !dedicated {
            self.clear(base, len / PAGE_SIZE);
        }
    }

    /// Address of the first byte that may be touched.
    pub(crate) fn start(&self) -> usize {
        self.base.get() + self.lead.get()
    }

    /// Address of the first byte after those that may be touched.
    pub(crate) fn end(&self) -> usize {
        self.base.get() + self.len.get() - self.tail.get()
    }

    /// How many bytes may be touched.
    pub(crate) fn room(&self) -> usize {
        self.end() - self.start()
    }

    /// Calls `f(word, mask)` for every word of bits that the run `(addr, pages)` has a part in.
    fn words(&self, addr: usize, pages: usize, mut f: impl FnMut(usize, u64)) {
        let first = (addr - self.base.get()) / PAGE_SIZE;
        let mut bit = first;
        while bit < first + pages {
            let within = bit % 64;
            let count = (64 - within).min(first + pages - bit);
            let mask = (u64::MAX >> (64 - count)) << within;
            f(bit / 64, mask);
            bit += count;
        }
    }

    /// How many pages of the run may hold frames that may go back.
    pub(crate) fn count_dirty(&self, addr: usize, pages: usize) -> usize {
        let mut count = 0;
        self.words(addr, pages, |word, mask| {
            let bits = self.dirty[word].get() & mask;
            // Most words have none set or all, and the least processor that we run on counts bits in a dozen steps.
            count += match bits {
                0 => 0,
                u64::MAX => 64,
                some => some.count_ones() as usize,
            };
        });
        count
    }

    /// Whether all pages of the run read as zero.
    pub(crate) fn is_zero(&self, addr: usize, pages: usize) -> bool {
        let mut found = 0;
        self.words(addr, pages, |word, mask| {
            found |= (self.dirty[word].get() | self.left[word].get()) & mask
        });
        found == 0
    }

    /// Which of up to 64 pages from `addr` on may hold something: the lowest bit is of the first. Bits of what lies behind the chunk may be any.
    pub(crate) fn written_from(&self, addr: usize) -> u64 {
        let first = (addr - self.base.get()) / PAGE_SIZE;
        let (word, within) = (first / 64, first % 64);
        let written = |word: usize| self.dirty[word].get() | self.left[word].get();
        let next = if within > 0 && word + 1 < WORDS { written(word + 1) << (64 - within) } else { 0 };
        written(word) >> within | next
    }

    pub(crate) fn set_dirty(&self, addr: usize, pages: usize) {
        self.words(addr, pages, |word, mask| {
            self.dirty[word].set(self.dirty[word].get() | mask);
            self.left[word].set(self.left[word].get() & !mask);
        });
    }

    /// Says that the run reads as zero.
    pub(crate) fn clear(&self, addr: usize, pages: usize) {
        self.words(addr, pages, |word, mask| {
            self.dirty[word].set(self.dirty[word].get() & !mask);
            self.left[word].set(self.left[word].get() & !mask);
        });
    }

    /// Says that the dirty pages of the run are not to go back again.
    pub(crate) fn leave(&self, addr: usize, pages: usize) {
        self.words(addr, pages, |word, mask| {
            let dirty = self.dirty[word].get() & mask;
            self.dirty[word].set(self.dirty[word].get() & !mask);
            self.left[word].set(self.left[word].get() | dirty);
        });
    }

    /// The smallest range `(address, bytes)` that holds the last `count` dirty pages of the run, or all if it has no more.
    pub(crate) fn dirty_end(&self, addr: usize, pages: usize, count: usize) -> Option<(usize, usize)> {
        let mut spared = self.count_dirty(addr, pages).saturating_sub(count);
        let mut hull: Option<(usize, usize)> = None;
        self.words(addr, pages, |word, mask| {
            let mut bits = self.dirty[word].get() & mask;
            let skipped = spared.min(bits.count_ones() as usize);
            for _ in 0..skipped {
                bits &= bits - 1;
            }
            spared -= skipped;
            if bits != 0 {
                let low = word * 64 + bits.trailing_zeros() as usize;
                let high = word * 64 + 64 - bits.leading_zeros() as usize;
                hull = Some((hull.map_or(low, |h| h.0), high));
            }
        });
        hull.map(|(low, high)| (self.base.get() + low * PAGE_SIZE, (high - low) * PAGE_SIZE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    fn chunk() -> Box<Chunk> {
        // SAFETY: all-zero bytes are a valid `Chunk`: integers, `None`, `false` and `Domain::Managed`.
        let chunk: Box<Chunk> = unsafe { Box::new(core::mem::zeroed()) };
        chunk.describe(Domain::Managed, EXTENT_SIZE, 2 * EXTENT_SIZE, false);
        chunk
    }

    #[test]
    fn what_is_left_is_neither_counted_nor_zero_until_it_is_used_or_goes() {
        let chunk = chunk();
        let at = |page: usize| EXTENT_SIZE + page * PAGE_SIZE;
        chunk.set_dirty(at(60), 200);
        chunk.leave(at(40), 100);
        assert_eq!(chunk.count_dirty(at(0), 1024), 120);
        assert!(chunk.is_zero(at(0), 60) && !chunk.is_zero(at(139), 1));
        assert_eq!(chunk.dirty_end(at(0), 1024, usize::MAX), Some((at(140), 120 * PAGE_SIZE)));
        chunk.set_dirty(at(70), 10);
        assert_eq!(chunk.count_dirty(at(0), 1024), 130);
        chunk.clear(at(60), 40);
        assert_eq!(chunk.count_dirty(at(0), 1024), 120);
        assert!(chunk.is_zero(at(0), 100) && !chunk.is_zero(at(100), 1));
    }

    #[test]
    fn the_bits_of_the_pages_from_any_one_on_are_as_they_were_set() {
        let chunk = chunk();
        let at = |page: usize| EXTENT_SIZE + page * PAGE_SIZE;
        [3, 64, 100, 700, 1023].into_iter().for_each(|page| chunk.set_dirty(at(page), 1));
        chunk.set_dirty(at(200), 150);
        chunk.leave(at(250), 90);
        for first in 0..1024 {
            let bits = chunk.written_from(at(first));
            for page in first..(first + 64).min(1024) {
                assert_eq!(bits >> (page - first) & 1 == 0, chunk.is_zero(at(page), 1), "{page}");
            }
        }
    }

    #[test]
    fn bits_are_set_counted_and_cleared_in_the_given_run_only() {
        let chunk = chunk();
        let at = |page: usize| EXTENT_SIZE + page * PAGE_SIZE;
        chunk.set_dirty(at(60), 200);
        assert_eq!(chunk.count_dirty(at(0), 1024), 200);
        assert_eq!(chunk.count_dirty(at(0), 61), 1);
        assert_eq!(chunk.count_dirty(at(259), 10), 1);
        chunk.clear(at(64), 64);
        assert_eq!(chunk.count_dirty(at(0), 1024), 136);
        assert_eq!(chunk.count_dirty(at(64), 64), 0);
    }

    #[test]
    fn the_end_spans_from_the_first_to_the_last_of_the_last_dirty_pages() {
        let chunk = chunk();
        let at = |page: usize| EXTENT_SIZE + page * PAGE_SIZE;
        assert_eq!(chunk.dirty_end(at(0), 1024, usize::MAX), None);
        chunk.set_dirty(at(3), 1);
        chunk.set_dirty(at(700), 2);
        assert_eq!(chunk.dirty_end(at(0), 1024, usize::MAX), Some((at(3), 699 * PAGE_SIZE)));
        assert_eq!(chunk.dirty_end(at(4), 697, usize::MAX), Some((at(700), PAGE_SIZE)));
        assert_eq!(chunk.dirty_end(at(0), 1024, 3), Some((at(3), 699 * PAGE_SIZE)));
        assert_eq!(chunk.dirty_end(at(0), 1024, 2), Some((at(700), 2 * PAGE_SIZE)));
        assert_eq!(chunk.dirty_end(at(0), 1024, 1), Some((at(701), PAGE_SIZE)));
        assert_eq!(chunk.dirty_end(at(0), 1024, 0), None);
        chunk.set_dirty(at(100), 200);
        assert_eq!(chunk.dirty_end(at(0), 512, 130), Some((at(170), 130 * PAGE_SIZE)));
    }
}
