//! What is touched in a forked child before it is served.
//!
//! Between the fork and the child's own userfaultfd, libc puts its own records in order, and the kernel may write the child's number where the program
//! asked for it. Where such a word lies in a page that is away, the kernel finds nothing there and knows of nobody to ask: it maps zeros.
//! The page is in the child's view then, and never faults again; what it held would be lost.
//!
//! A page that only was read is the kernel's page of zeros, and is dropped before the child's memory is registered. One that was written is a page of the
//! child's own, of zeros and a few words: those stay, and all else is what the page held. Zeros that were written to it cannot be told.
//!
//! Not every page that is there while its entry says that it is away is such a page: the parent may have brought it back in the moment of
//! the fork ([`super::forking`]), and then it is the program's. It is shared with the parent, or has words that the page had.

use crate::engine::Engine;
use crate::fault::reason::Reason;
use crate::fault::restore::{Peek, Restorer};
use crate::kernel::Kernel;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entry::State;
use crate::tables::extent::Extent;
use crate::tier;
use core::sync::atomic::Ordering::*;
use memfold_sys::pagemap::{Categories, Entry, Query, Run};
use memfold_sys::{mem, Result, PAGE_SIZE};

/// Words of four bytes to a page.
const WORDS: usize = PAGE_SIZE / 4;
/// Libc and the kernel write no more of them to a page; who writes more is the program.
const MOST_WRITTEN: usize = 64;

impl Engine {
    /// Drops the pages of zeros that lie where a page of the child's is away, and returns whether other pages lie there. Before the memory is
    /// registered: then nobody waits to be told that something was dropped.
    pub(super) fn drop_zeros_in_child(&self, kernel: &Kernel) -> bool {
        let mut others = false;
        for (extent, away) in self.away_in_child() {
            let none = Categories::empty();
            for run in present(kernel, extent, &away, none).runs() {
                let zeros = present(kernel, extent, &run.set(), Categories::ZERO);
                for run in zeros.runs() {
                    // SAFETY: nobody but the kernel put anything there, and what belongs there comes when it is touched.
                    let dropped =
                        unsafe { mem::madvise(extent.page_addr(run.lo), run.bytes(), libc::MADV_DONTNEED) };
                    others |= dropped.is_err();
                }
                others |= zeros != run.set();
            }
        }
        others
    }

    /// Puts back what pages held that were written to in this child. After the memory was registered.
    pub(super) fn mend_written_in_child(&'static self, restorer: &mut Restorer) {
        for (extent, away) in self.away_in_child() {
            // What may not be written to, nobody has written to.
            let written =
                present(restorer.kernel, extent, &away.and(&extent.managed.load()), Categories::empty());
            for index in written.pages() {
                let mut entry = [Entry::default()];
                let addr = extent.page_addr(index);
                if restorer.kernel.pagemap.entries(addr, &mut entry) != Ok(1) {
                    continue;
                }
                let Some(held) = self.held_in_child(restorer, extent, index) else { continue };
                if entry[0].exclusive() {
                    // SAFETY: the page is there and may be written to, and the program does not run (nor does its stack lie here, see `bring_stack_back`);
                    // what it held can be read.
                    unsafe { mend(addr as *mut u32, held as *const u32) };
                }
                let aside = extent.entry(index).state() == State::Aside;
                // It is there, which makes the entry say so: what a child of this one finds there is the program's.
                restorer.restore(extent, PageRange::one(index), Reason::Change);
                if aside {
                    self.note_copies(extent, 1);
                }
            }
        }
    }

    fn away_in_child(&self) -> impl Iterator<Item = (&'static Extent, PageSet)> {
        let extents = self.space().all().filter(|extent| extent.away.load(Relaxed) != 0);
        extents.map(|extent| (extent, extent.away_pages()))
    }

    /// Where what the page holds can be read; it is fetched from below memory if need be.
    fn held_in_child(&'static self, restorer: &mut Restorer, extent: &Extent, index: usize) -> Option<usize> {
        let mut found = restorer.peek(extent, index);
        if let (Peek::Below, Some(below)) = (found, self.below()) {
            // There is no thread of the tier here.
            tier::bring::fetch(self, below, extent.page_addr(index), &mut restorer.arrived)?;
            found = restorer.peek(extent, index);
        }
        match found {
            Peek::At(addr) => Some(addr),
            Peek::Below | Peek::Unreadable => None,
        }
    }
}

/// Of these pages those that are in memory and of these categories.
fn present(kernel: &Kernel, extent: &Extent, pages: &PageSet, all: Categories) -> PageSet {
    let query = Query {
        all: all | Categories::PRESENT,
        none: Categories::empty(),
        report: Categories::PRESENT,
        protect: false,
    };
    let mut found = PageSet::EMPTY;
    let mut note = |run: PageRange| -> Result<()> {
        let (mut at, end) = (extent.page_addr(run.lo), extent.page_addr(run.hi));
        let mut runs = [Run::EMPTY; 16];
        while at < end {
            let (count, stopped) = kernel.pagemap.scan(at, end, &query, &mut runs)?;
            for run in &runs[..count] {
                found = found.or(&extent.clip(run.start as usize, run.end as usize).set());
            }
            if stopped <= at {
                break;
            }
            at = stopped;
        }
        Ok(())
    };
    for run in pages.runs() {
        // What the kernel does not tell was not there at the fork, as far as anybody knows.
        let _ = note(run);
    }
    found.and(pages)
}

/// Puts what the page held beside what was written to the zeros in its place.
///
/// # Safety
/// Both are pages; the one can be written to and the other read, and nobody else does either.
unsafe fn mend(page: *mut u32, held: *const u32) {
    // SAFETY: the caller's contract; words of a page.
    let word = |n: usize| unsafe { (page.add(n).read_volatile(), held.add(n).read()) };
    let written = (0..WORDS).filter(|&n| word(n).0 != 0);
    let is_the_programs = (0..WORDS).any(|n| word(n).0 != 0 && word(n).0 == word(n).1);
    if is_the_programs || written.count() > MOST_WRITTEN {
        return;
    }
    for n in 0..WORDS {
        if let (0, held) = word(n) {
            // SAFETY: as above.
            unsafe { page.add(n).write_volatile(held) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_stays_and_the_rest_is_what_the_page_held() {
        let held = [7u32; WORDS];
        let mended = |written: &[(usize, u32)]| {
            let mut page = [0u32; WORDS];
            written.iter().for_each(|&(at, word)| page[at] = word);
            // SAFETY: two pages of this test's.
            unsafe { mend(page.as_mut_ptr(), held.as_ptr()) };
            page
        };
        assert_eq!(mended(&[]), held);
        let page = mended(&[(5, 1), (1023, 2)]);
        assert_eq!((page[5], page[1023]), (1, 2));
        assert_eq!(page.iter().filter(|&&word| word == 7).count(), WORDS - 2);
    }

    #[test]
    fn what_the_parent_brought_back_is_left_as_it_is() {
        let held = [7u32; WORDS];
        let left = |page: [u32; WORDS]| {
            let mut after = page;
            // SAFETY: two pages of this test's.
            unsafe { mend(after.as_mut_ptr(), held.as_ptr()) };
            after == page
        };
        let mut zeroed = [0; WORDS];
        zeroed[1000] = 7;
        assert!(left(zeroed), "a word of the page's own is there");
        assert!(left([9; WORDS]), "all of it was written");
    }
}
