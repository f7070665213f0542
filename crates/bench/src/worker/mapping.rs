//! The region of a worker whose pages are evicted, by the pager or by the kernel.

use anyhow::{ensure, Result};
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::{mem, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How often the kernel is asked in vain to swap out what is left, and how far apart.
const IN_VAIN: usize = 5;
const PAUSE: Duration = Duration::from_millis(5);

/// Where the region's pages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// In memory, in the program's view.
    pub present: usize,
    /// In the kernel's swap.
    pub swapped: usize,
    /// Neither: with the pager.
    pub away: usize,
}

/// A private anonymous mapping, in pages of 4 KiB.
pub(super) struct Mapping {
    base: usize,
    pages: usize,
    pagemap: Pagemap,
}

impl Mapping {
    /// Maps it.
    pub(super) fn new(pages: usize) -> Result<Mapping> {
        ensure!(pages > 0, "a region needs a page");
        let len = pages * PAGE_SIZE;
        // libc's calls, not the kernel's: the preloaded library must see the mapping, as it sees a program's.
        // SAFETY: a fresh mapping placed by the kernel; the advice changes no contents.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let raw =
                libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            ensure!(raw != libc::MAP_FAILED, "cannot map {len} bytes: {}", std::io::Error::last_os_error());
            libc::madvise(raw, len, libc::MADV_NOHUGEPAGE);
            raw as usize
        };
        Ok(Mapping { base, pages, pagemap: Pagemap::open()? })
    }

    /// Its pages.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// Where a page of it begins.
    pub(super) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    /// Whether a page is in memory, in the program's view.
    pub(super) fn is_present(&self, page: usize) -> Result<bool> {
        let mut entry = [Entry::default()];
        self.pagemap.entries(self.address(page), &mut entry)?;
        Ok(entry[0].present())
    }

    /// Looks where its pages are.
    pub(super) fn look(&self) -> Result<Presence> {
        let mut entries = vec![Entry::default(); self.pages];
        let read = self.pagemap.entries(self.base, &mut entries)?;
        ensure!(read == self.pages, "the page map has {read} of {} entries", self.pages);
        let present = entries.iter().filter(|e| e.present()).count();
        let swapped = entries.iter().filter(|e| e.swapped()).count();
        Ok(Presence { present, swapped, away: self.pages - present - swapped })
    }

    /// Has the kernel swap it out. Asks again while that makes progress, and some times more: a page that is busy for a moment is passed over.
    pub(super) fn page_out(&self) -> Result<Presence> {
        let (mut last, mut in_vain) = (self.look()?, 0);
        while last.present > 0 && in_vain < IN_VAIN {
            // SAFETY: the advice changes where the contents are, not what they are.
            unsafe { mem::madvise(self.base, self.pages * PAGE_SIZE, libc::MADV_PAGEOUT)? };
            let now = self.look()?;
            if now == last {
                in_vain += 1;
                std::thread::sleep(PAUSE);
            }
            last = now;
        }
        Ok(last)
    }
}
