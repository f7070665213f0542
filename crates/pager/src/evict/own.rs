//! After a fork: making pages that were shared with a child the program's own again, since only those can be moved.
//!
//! A page that is once shared stays so for the kernel until it is written, also when the child has long ended. So it is seen whether it
//! is mapped here alone, and if so, it is prepared for writing, which changes nothing of it and copies nothing. What a child still
//! shares is left: to fold it would give nothing back, and to write it would cost a copy.
//!
//! Background thread only.

use crate::evict::set_aside::{self, forget_written};
use crate::evict::worker::Worker;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::Extent;
use core::sync::atomic::Ordering::*;
use memfold_sys::pagemap::Entry;
use memfold_sys::{mem, EXTENT_PAGES};

/// Pages prepared at once, and looked at together.
const BATCH: usize = 64;

impl Worker {
    /// Sets those aside of the pages, which the kernel refused to move, that no child shares any more. With no lock held.
    pub(crate) fn set_aside_unshared(&mut self, extent: &Extent, refused: &PageSet) {
        if fault_point!(SharingNotEnded: refused.is_empty(), else true) {
            return;
        }
        let owned = self.own(extent, refused);
        let Some(mut extent) = extent.try_lock() else { return };
        // What is pinned for a device is mapped here alone too, and refused again.
        extent.shared.remove(&PageSet::ALL);
        extent.shared.insert(&refused.minus(&owned).and(&extent.refused.load()));
        extent.refused.remove(&owned);
        let Ok(scan) = set_aside::scan(self.kernel, &extent, false) else { return };
        let pages = self.set_aside(&extent, &owned.and(&scan.present), scan.huge);
        if pages > 0 {
            extent.probed_pages.store(extent.aside_pages().len() as u32, Relaxed);
            extent.age().set_aside(self.now.0);
        }
    }

    /// Makes those pages the program's own that are mapped here alone, and returns them. With no lock held: one that is dropped past
    /// libc in this moment has this thread wait for the fault thread.
    pub(crate) fn own(&mut self, extent: &Extent, pages: &PageSet) -> PageSet {
        let alone = pages.and(&self.mapped_here_alone(extent, pages));
        let mut owned = PageSet::EMPTY;
        for run in alone.runs() {
            for at in run.indices().step_by(BATCH) {
                let batch = PageRange::new(at, (at + BATCH).min(run.hi));
                // The fault thread may be waiting for us to stand still.
                self.park();
                // Where the kernel cannot (before 5.14), such pages stay.
                // SAFETY: the kernel writes nothing to the pages, it prepares them for writing.
                let prepared =
                    unsafe { mem::madvise(extent.page_addr(at), batch.bytes(), libc::MADV_POPULATE_WRITE) };
                self.engine.traffic.brake.unpark();
                if prepared.is_ok() {
                    // It counts as a write, and is none.
                    forget_written(self.kernel, extent, batch);
                    owned = owned.or(&batch.set());
                }
                if self.interrupted() {
                    return owned;
                }
            }
        }
        owned
    }

    /// Pages from the first to the last of `pages` that no other process maps.
    fn mapped_here_alone(&self, extent: &Extent, pages: &PageSet) -> PageSet {
        let mut alone = PageSet::EMPTY;
        let mut entries = [Entry::default(); BATCH];
        for at in (0..EXTENT_PAGES).step_by(BATCH) {
            if pages.and(&PageRange::from(at, BATCH).set()).is_empty() {
                continue;
            }
            // What cannot be read stays as it is.
            let read = self.kernel.pagemap.entries(extent.page_addr(at), &mut entries).unwrap_or(0);
            for (index, entry) in entries[..read].iter().enumerate() {
                if entry.present() && fault_point!(SharedTaken: entry.exclusive(), else true) {
                    alone.insert(at + index);
                }
            }
        }
        alone
    }
}
