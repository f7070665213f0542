//! Who waits for room: a thread that touches a page for which there is none.
//!
//! The fault thread turns it away, and the background thread wakes everybody when there is room again.

use crate::engine::{Agent, Engine, Phase};
use crate::kernel::Kernel;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::{Extent, Locked};
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};

impl Engine {
    /// Whether there is no room for what thread `tid` has touched at `now`: it is left asleep, and the background thread
    /// has been told. Fault thread.
    pub(crate) fn must_wait_for_room(&self, extent: &Extent, page: usize, tid: u32, now: Nanos) -> bool {
        if !self.room.is_kept() {
            return false;
        }
        if self.room.is_low() {
            self.ring();
        }
        let index = (page - extent.base()) / PAGE_SIZE;
        if self.room.left() > 0
            || !extent.managed.contains(index)
            || self.phase() != Phase::Running
            || self.traffic.brake.wanted()
            || self.traffic.is_forking()
            || self.tid(Agent::Background) == Some(tid)
        {
            return false;
        }
        self.room.turn_away(tid, now);
        // Room that was made before we were counted has woken nobody for us.
        if self.room.left() > 0 {
            return false;
        }
        self.ring();
        true
    }

    /// Has the kernel report the first touches of pages that are managed from now on, where a limit is to be kept. What cannot
    /// be had now the background thread sees to.
    pub(crate) fn arm_from_start(&self, extent: &Locked, pages: &PageSet) {
        if !self.is_limited() || self.phase() != Phase::Running {
            return;
        }
        let pages = pages.and(&extent.managed.load()).minus(&extent.armed.load());
        for run in pages.runs() {
            if self.proxy.arm(extent.page_addr(run.lo), run.bytes()).is_ok() {
                extent.armed.insert(&run.set());
            }
        }
    }

    /// Wakes every thread that sleeps on a page of the program's; it touches its page again.
    pub(crate) fn wake_everybody(&self, kernel: &Kernel) {
        self.room.wakes.fetch_add(1, SeqCst);
        let (mut start, mut end) = (0, 0);
        for extent in self.space().all().filter(|extent| !extent.armed.load().is_empty()) {
            if extent.base() != end {
                if start != end {
                    kernel.uffd.wake(start, end - start);
                }
                start = extent.base();
            }
            end = extent.base() + EXTENT_SIZE;
        }
        if start != end {
            kernel.uffd.wake(start, end - start);
        }
    }
}
