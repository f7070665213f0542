//! What the pager's files see of the kernel, in a model.

use crate::sync::Ordering::SeqCst;
use crate::tables::bitmap::PageRange;
use crate::tables::extent::Extent;
use crate::world::{enter, set_staged, staging, ZERO};
use memfold_sys::pagemap::{Categories, Query, Run};
use memfold_sys::uffd::{Modes, Userfaultfd};
use memfold_sys::{Result, PAGE_SIZE};

/// As in the pager.
pub struct Kernel {
    pub uffd: Userfaultfd,
    pub staging: Staging,
    pub pagemap: Pagemap,
    pub tracks_writes: bool,
}

impl Kernel {
    pub fn armed_modes(&self) -> Modes {
        Modes::MISSING | Modes::WP
    }
}

/// One slot.
pub struct Staging(pub Userfaultfd);

impl Staging {
    /// It has a userfaultfd of its own, as under `memfold run`.
    pub fn open_to<'a>(&'a self, _: &Extent, _: &'a Userfaultfd) -> Result<&'a Userfaultfd> {
        Ok(&self.0)
    }

    /// There is nothing to close.
    pub fn close_to(&self, _: &Extent, _: &Userfaultfd) {}

    /// # Safety
    /// As in the pager.
    pub unsafe fn take(&self, extent: &Extent) -> bool {
        extent.staging.store(1, SeqCst);
        true
    }

    pub fn page_addr(&self, extent: &Extent, index: usize) -> Option<usize> {
        (extent.staging.load(SeqCst) != 0).then(|| staging() + index * PAGE_SIZE)
    }

    /// # Safety
    /// As in the pager.
    pub unsafe fn drop_pages(&self, _extent: &Extent, pages: PageRange) {
        enter(|world| {
            for index in pages.indices() {
                world.staged[index] = false;
                set_staged(index, ZERO);
            }
        });
    }

    /// # Safety
    /// As in the pager.
    pub unsafe fn give_back(&self, extent: &Extent) {
        // SAFETY: the caller's contract.
        unsafe { self.drop_pages(extent, PageRange::ALL) };
        extent.staging.store(0, SeqCst);
    }
}

/// In a model every page is there, and registered once it was asked for: there are no holes.
pub struct Pagemap;

impl Pagemap {
    pub fn scan(&self, start: usize, end: usize, _: &Query, runs: &mut [Run]) -> Result<(usize, usize)> {
        let words = [start as u64, end as u64, Categories::TRACKED.bits()];
        // SAFETY: three words, as the kernel writes them.
        runs[0] = unsafe { std::mem::transmute::<[u64; 3], Run>(words) };
        Ok((1, end))
    }

    /// A model's moves tell the truth.
    pub fn moved_unseen(&self, _: usize, _: usize, _: usize) -> Result<usize> {
        Ok(0)
    }
}
