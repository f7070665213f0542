//! Bringing back what nobody has touched yet, where memory is walked through (`memfold_policy::walk`): the rest of an extent, and when
//! several extents were walked through in a moment, all that lies whole anywhere.
//!
//! A collector that marks goes from object to object, in no order of addresses, in several threads. It would wait for each page
//! that is set aside, tens of microseconds each; to move all of them back takes about one a page (measured while its threads keep the
//! other CPUs busy, which each move must tell).
//!
//! What it is not: a judgement. What came back so is not taken for used; the background thread is told by [`RECALLED`], and begins
//! the extent's probe anew with what it has proved so far.
//!
//! Fault thread only, between two messages, in its turn. A fork waits for the turn, and while one is under way nothing is recalled.

use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::fault::waits::Waits;
use crate::kernel::Kernel;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::{Extent, RECALLED};
use crate::tables::space::LIMIT;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{EXTENT_PAGES, PAGE_SIZE};

/// How long others may wait while the rest of one extent is brought back, unless another thread waits, which ends it.
const WALK_SLICE: Nanos = Nanos(200_000);
/// How long they may wait while everything is recalled. Whoever waits would wait again for its next page, and so on.
const RECALL_SLICE: Nanos = Nanos(500_000);
/// Pages aside from which on it is worth going through all extents.
const WORTHWHILE: u64 = 64;

/// A recall of all that is set aside.
#[derive(Debug, Default)]
pub struct Recall {
    /// The page with which it goes on; `None` where none is under way.
    next: Option<usize>,
}

impl Recall {
    /// None is under way.
    pub const fn new() -> Recall {
        Recall { next: None }
    }

    /// Begins one, or the one under way anew.
    pub fn begin(&mut self, engine: &Engine) {
        if engine.counts.aside.load(Relaxed) >= WORTHWHILE {
            self.next = Some(0);
        }
    }

    /// Whether there is something to be done now.
    pub fn is_due(&self, engine: &Engine) -> bool {
        self.next.is_some() && !engine.traffic.is_forking()
    }

    /// Goes on with it for a moment. In the fault thread's turn.
    pub fn go_on(&mut self, mut work: Unasked<'_>) {
        let Some(next) = self.next.take() else { return };
        let engine = work.engine;
        for extent in engine.space().existing(next, LIMIT) {
            let pages = extent.aside_pages().minus(&extent.clip(0, next).set());
            if !pages.is_empty() {
                fault_point!(RecallUnmarked: extent.flags.fetch_or(RECALLED, Relaxed));
                // A page that cannot come now is not tried again.
                if let Err(index) = work.bring(extent, &pages, RECALL_SLICE, false) {
                    self.next = fault_point!(RecallCutShort: Some(extent.page_addr(index)), else None);
                    return;
                }
            }
            if work.is_over(RECALL_SLICE) {
                self.next = fault_point!(RecallCutShort: Some(extent.page_addr(EXTENT_PAGES)), else None);
                return;
            }
        }
    }
}

/// The work of one moment.
pub struct Unasked<'a> {
    engine: &'static Engine,
    kernel: &'static Kernel,
    restorer: &'a mut Restorer,
    waits: &'a mut Waits,
    began: Nanos,
}

impl<'a> Unasked<'a> {
    /// Begins now.
    pub fn new(
        engine: &'static Engine,
        kernel: &'static Kernel,
        restorer: &'a mut Restorer,
        waits: &'a mut Waits,
    ) -> Unasked<'a> {
        Unasked { engine, kernel, restorer, waits, began: time::now() }
    }

    /// Brings the rest of an extent that is walked through: these pages, from page `from` on and then what lies before it, as much as
    /// can be had in a moment while no other thread waits. The next touch brings more.
    pub fn bring_rest(&mut self, extent: &Extent, pages: &PageSet, from: usize) {
        let before = PageRange::new(0, from).set();
        if self.bring(extent, &pages.minus(&before), WALK_SLICE, true).is_ok() {
            let _ = self.bring(extent, &pages.and(&before), WALK_SLICE, true);
        }
    }

    /// Brings these pages, those that can come now, for as long as there is time; with `gives_way`, until another thread waits.
    ///
    /// # Errors
    /// The page behind the last that was tried, where time was over before all were.
    fn bring(&mut self, extent: &Extent, pages: &PageSet, time: Nanos, gives_way: bool) -> Result<(), usize> {
        for run in pages.runs() {
            let mut at = run.lo;
            while at < run.hi {
                let outcome = self.restorer.restore(extent, run.starting_at(at), Reason::Walk);
                at += 1;
                let awaited = self.kernel.uffd.has_message();
                if let Outcome::Done { first, pages } = outcome {
                    // Before the wake-up: it may be for one of these.
                    if awaited {
                        self.waits.unseen(time::now().since(self.began));
                    }
                    self.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
                    at = at.max(first + pages);
                }
                if gives_way && awaited || self.is_over(time) {
                    return Err(at);
                }
            }
        }
        Ok(())
    }

    fn is_over(&self, time: Nanos) -> bool {
        time::now().since(self.began) >= time
    }
}
