//! What the pager's files see of the kernel, in a model.

use crate::extent::Extent;
use crate::sync::Ordering::SeqCst;
use crate::world::{enter, set_staged, staging, ZERO};
use sys::pagemap::{Query, Run};
use sys::uffd::{Modes, Userfaultfd};
use sys::{Result, EXTENT_PAGES, PAGE_SIZE};

/// As in the pager.
pub struct Kernel {
    pub uffd: Userfaultfd,
    pub staging: Staging,
    pub pagemap: Pagemap,
}

impl Kernel {
    pub fn armed_modes(&self) -> Modes {
        Modes::MISSING | Modes::WP
    }
}

/// One slot.
pub struct Staging(pub Userfaultfd);

impl Staging {
    pub fn uffd(&self) -> &Userfaultfd {
        &self.0
    }

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
    pub unsafe fn drop_pages(&self, _extent: &Extent, lo: usize, hi: usize) {
        enter(|world| {
            for index in lo..hi {
                world.staged[index] = false;
                set_staged(index, ZERO);
            }
        });
    }

    /// # Safety
    /// As in the pager.
    pub unsafe fn give_back(&self, extent: &Extent) {
        // SAFETY: the caller's contract.
        unsafe { self.drop_pages(extent, 0, EXTENT_PAGES) };
        extent.staging.store(0, SeqCst);
    }
}

/// Which pages are there is not asked in a model.
pub struct Pagemap;

impl Pagemap {
    pub fn scan(&self, _: usize, end: usize, _: &Query, _: &mut [Run]) -> Result<(usize, usize)> {
        Ok((0, end))
    }

    /// A model's moves tell the truth.
    pub fn moved_unseen(&self, _: usize, _: usize, _: usize) -> Result<usize> {
        Ok(0)
    }
}
