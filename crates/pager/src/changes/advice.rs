//! Ranges that a program names itself, and what it says of them.
//!
//! What it is not: a check of the range. Who calls has made sure that it is private anonymous memory, readable and
//! writable; where it is not, the kernel refuses to register it, and it is left alone.
//!
//! Invariants: what is evicted of a range stays valid whatever is said of the range, and however often. That is the
//! difference to [`Engine::mapped`], which forgets what was there before.

use crate::changes::mappings::First;
use crate::engine::Engine;
use crate::evict::worker::Worker;
use crate::source::{AccessSource, Hints, Seen};
use crate::tables::bounds::Bounds;
use crate::tables::extent::Locked;
use core::sync::atomic::Ordering::*;
use memfold_sys::{signal, Errno, Result, EXTENT_SIZE};

impl Engine {
    /// Manages the whole pages of the range from now on, those included that were exempted before. `ENOMEM` when there
    /// is no memory for tables, `EINVAL` above 2^47: what lies before that place is managed then.
    pub fn offer(&'static self, addr: usize, len: usize) -> Result<()> {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.tell_young(Bounds { start, end });
        // Relaxed: a statistic that orders nothing.
        self.control().ranges_added.fetch_add(1, Relaxed);
        {
            let _blocked = signal::block_all();
            let _pass = self.traffic.gate.pass();
            self.settle_changes();
            let mut at = start;
            while at < end {
                let extent = self.space().find_or_make(at, &self.tables.pool)?;
                let extent = extent.lock();
                let pages = extent.clip(start, end).set();
                extent.anonymous.insert(&pages);
                extent.left_alone.remove(&pages);
                self.set_managed(&extent, &pages, true);
                at = extent.base() + EXTENT_SIZE;
            }
        }
        self.start_if_due();
        Ok(())
    }

    /// Brings the range back and manages it no more.
    pub fn withdraw(&'static self, addr: usize, len: usize) -> Result<()> {
        // Relaxed: a statistic that orders nothing.
        self.control().ranges_removed.fetch_add(1, Relaxed);
        self.change(
            &[Bounds::of(addr, len)],
            First::BringBack,
            || Ok(()),
            |engine, extent, pages| {
                engine.forget_mapping(extent, &pages.set());
            },
        )
    }

    /// Manages again what was offered of the range and exempted since.
    pub fn readmit(&'static self, addr: usize, len: usize) -> Result<()> {
        self.change(
            &[Bounds::of(addr, len)],
            First::Nothing,
            || Ok(()),
            |engine, extent, pages| {
                let pages = pages.set().and(&extent.anonymous.load());
                extent.left_alone.remove(&pages);
                engine.set_managed(extent, &pages, true);
            },
        )
    }

    /// The range will be touched soon: brings it back, and leaves it alone for half a cold age at least.
    pub fn will_need(&'static self, addr: usize, len: usize) -> Result<()> {
        let now = memfold_sys::time::now().0;
        self.change(
            &[Bounds::of(addr, len)],
            First::BringBack,
            || Ok(()),
            |_, extent, pages| {
                extent.soon.remove(&pages.set());
                extent.age().watched(now);
            },
        )
    }

    /// The range will not be touched soon: the background thread sets it aside at its next look, whatever its age, and
    /// compresses it after a cold age, or at once where that is what the access source has it do ([`memfold_policy::age::Timing`]). Pieces of fewer than 8 pages in an extent of which nothing else is away
    /// stay, and so do parts of a huge page. `ENOENT` when nothing of the range is known.
    pub fn dont_need_soon(&'static self, addr: usize, len: usize) -> Result<()> {
        let Bounds { start, end } = Bounds::of(addr, len);
        let mut known = false;
        for extent in self.space().existing(start, end) {
            extent.soon.insert(&extent.clip(start, end).set().and(&extent.managed.load()));
            self.space().wake(extent);
            known = true;
        }
        self.ring();
        known.then_some(()).ok_or(Errno::ENOENT)
    }
}

impl Worker {
    /// Sets aside what the program will not need soon.
    pub(crate) fn set_aside_as_told(&mut self, extent: &mut Locked) {
        // SAFETY: we are the background thread.
        if extent.staging.load(Relaxed) == 0 && !unsafe { self.kernel.staging.has_room() } {
            // There is once some of what lies there was compressed.
            return;
        }
        let told = extent.soon.load();
        let seen = Hints.look(self.kernel, extent, 0);
        extent.soon.remove(&told);
        let Ok(Seen { scan, cold }) = seen else { return };
        extent.hot.remove(&told);
        extent.back_soon.remove(&told);
        extent.refused.remove(&told);
        self.eviction.put_off = false;
        let pages = self.set_aside(extent, &cold.and(&told), scan.huge);
        if self.eviction.put_off {
            extent.soon.insert(&told.minus(&extent.away_pages()).minus(&extent.refused.load()));
        }
        if pages != 0 {
            extent.probed_pages.store(pages as u32, Relaxed);
            extent.touched.store(0, Relaxed);
            extent.age().set_aside(self.now.0);
        }
    }
}
