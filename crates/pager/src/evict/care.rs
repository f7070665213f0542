//! What is good for every extent whatever the policy: it rests where there is nothing to do for it, is let go of when all of it is back, and what
//! it has stored for long is compressed again.
//!
//! Background thread only. It tries locks of extents.

use crate::config::Setting;
use crate::evict::set_aside;
use crate::evict::worker::Worker;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::{Extent, Locked, SETTLED, WAS_HUGE};
use crate::tables::space::moment;
use core::sync::atomic::Ordering::*;
use memfold_policy::returns::SOON;
use memfold_sys::time::Nanos;
use memfold_sys::{mem, EXTENT_PAGES, EXTENT_SIZE};

/// Pages in use of an extent from which on it is better off as one huge page.
const DENSE: usize = EXTENT_PAGES / 2;

/// Makes an extent one huge page again that was split to see which of its pages are in use, if so many are.
fn join_again(extent: &Locked) {
    if extent.flags.load(Relaxed) & WAS_HUGE != 0 && extent.hot.load().len() >= DENSE {
        extent.flags.fetch_and(!WAS_HUGE, Relaxed);
        // Where the kernel has no huge page to give it stays as it is.
        // SAFETY: what memory holds does not change.
        let _ = unsafe { mem::madvise(extent.base(), EXTENT_SIZE, libc::MADV_COLLAPSE) };
    }
}

impl Worker {
    /// Does what there is to do for an extent whose time has not come. Returns whether it must be gone on with at once.
    pub(crate) fn care_for(&mut self, extent: &Extent) -> bool {
        if let Some(extent) = self.disarm(extent) {
            join_again(&extent);
            if self.kernel.tracks_writes {
                // Which is so no more, and the next look goes by that.
                self.watch_again(&extent);
            }
        }
        let is_dense = extent.dense_below.load(Relaxed) as usize == EXTENT_PAGES;
        if is_dense && extent.flags.load(Relaxed) & SETTLED != 0 {
            return false;
        }
        let away = self.now.since(Nanos(extent.last_laundry.load(Relaxed))).0;
        if away >= self.cold_age().saturating_mul(SOON) {
            extent.flags.fetch_or(SETTLED, Relaxed);
        } else {
            self.let_stored_grow_old(extent);
        }
        let wanted = !is_dense && away >= self.engine.setting(Setting::RecompressAge);
        if wanted && self.may_compress_again() {
            if self.packing.gains.are_worth_it() && !self.recompress(extent) {
                return true;
            }
            extent.dense_below.store(EXTENT_PAGES as u32, Relaxed);
        }
        false
    }

    /// Notes that these pages of the extent were just stored.
    pub(crate) fn note_young(&self, extent: &Extent, pages: &PageSet) {
        self.let_stored_grow_old(extent);
        extent.stored_lately[0].insert(pages);
        extent.last_laundry.store(self.now.0, Relaxed);
        extent.flags.fetch_and(!SETTLED, Relaxed);
        extent.dense_below.store(0, Relaxed);
    }

    /// What has been stored for long enough is no longer among what was stored lately: for once to twice that time, since no page has a time of its own.
    fn let_stored_grow_old(&self, extent: &Extent) {
        let soon = self.cold_age().saturating_mul(SOON);
        let age = self.now.since(Nanos(extent.stored_since.load(Relaxed))).0;
        if age < soon {
            return;
        }
        let [lately, before] = &extent.stored_lately;
        before.remove(&PageSet::ALL);
        if age < soon.saturating_mul(2) {
            before.insert(&lately.load());
        }
        lately.remove(&PageSet::ALL);
        extent.stored_since.store(self.now.0, Relaxed);
    }

    /// An extent that may have nothing to look at rests until somebody gives it something.
    pub(crate) fn let_empty_rest(&mut self, extent: &Extent) {
        let Some(extent) = &extent.try_lock() else { return };
        if extent.managed.load().is_empty()
            && extent.away.load(Relaxed) == 0
            && extent.armed.load().is_empty()
        {
            self.note_present(extent, 0);
            self.note_scattered(extent, 0);
            self.engine.space().let_rest(extent, u32::MAX);
        }
    }

    /// An extent whose time has not come rests until then, if it needs no other care.
    pub(crate) fn let_rest(&self, extent: &Locked, until: u64) {
        let idle = extent.away.load(Relaxed) == 0 && extent.armed.load().is_empty();
        if idle && extent.staging.load(Relaxed) == 0 {
            self.engine.space().let_rest(extent, moment(until));
            if !extent.soon.load().is_empty() {
                // Told without the lock, in this moment.
                self.engine.space().wake(extent);
            }
        }
    }

    /// Counts the managed pages of an extent that are in view.
    pub(crate) fn count_present(&mut self, extent: &Extent) {
        if let Ok(scan) = set_aside::scan(self.kernel, extent, false) {
            self.note_present(extent, scan.present.and(&extent.managed.load()).len());
        }
    }

    /// So many pages of the extent are in view.
    pub(crate) fn note_present(&mut self, extent: &Extent, pages: usize) {
        let before = u64::from(extent.present.swap(pages as u32, Relaxed));
        self.census.resident = (self.census.resident + pages as u64).saturating_sub(before);
    }
}
