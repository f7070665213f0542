//! The thread of the tier: fetches what is wanted from below memory, puts it in place, and writes what goes down.
//!
//! It waits for the disk so that the fault thread need not. How a page comes back is in [`super::bring`].
//!
//! Invariants: what is wanted comes before what goes down, one cluster at a time.

use super::below::Below;
use super::bring::{bring, fetch};
use super::location::Location;
use crate::control::bump;
use crate::engine::Engine;
use crate::fault::restore::{Outcome, Reason, Restorer};
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::tables::bitmap::PageRange;
use crate::tables::entry::Entry;
use crate::tables::extent::Extent;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread;
use memfold_sys::time::Nanos;
use memfold_sys::{mem, EXTENT_PAGES, PAGE_SIZE};

/// Longest sleep without a bell.
const SLEEP: Nanos = Nanos::from_secs(10);

/// The thread's entry; `arg` is the engine's address.
pub extern "C" fn main(arg: usize) {
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*(arg as *const Engine) };
    thread::set_name(c"memfold-tier");
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(0);
    keep_stack_out_of_cores();
    let restorer = engine.kernel().map(|kernel| patiently(|| Restorer::new(engine, kernel)));
    let (Some(below), Some(Ok(restorer))) = (engine.below(), restorer) else {
        engine.fail_hard("memfold: no memory for the thread of the tier");
    };
    Service { engine, kernel: restorer.kernel, below, restorer }.run();
}

/// Keys are expanded on it.
fn keep_stack_out_of_cores() {
    let here = 0u8;
    let page = (&raw const here as usize) & !(PAGE_SIZE - 1);
    // SAFETY: advice on a part of this thread's own stack, of which nobody makes a core that would miss it.
    let _ = unsafe { mem::madvise(page - STACK_USED, STACK_USED + PAGE_SIZE, libc::MADV_DONTDUMP) };
}

/// Bytes of stack that the thread uses at most, from where it begins.
const STACK_USED: usize = 128 << 10;

struct Service {
    engine: &'static Engine,
    kernel: &'static Kernel,
    below: &'static Below,
    restorer: Restorer,
}

impl Service {
    fn run(mut self) {
        loop {
            let bell = self.below.bell.load(Acquire);
            let mut idle = true;
            while let Some(page) = self.below.take_wanted() {
                self.bring(page);
                idle = false;
            }
            idle &= !answer_asks(self.engine, self.below);
            // One at a time: somebody may want a page meanwhile.
            if let Some(job) = self.below.next_job() {
                let control = self.engine.control();
                if self.below.carry_out(job).is_ok() {
                    bump(&control.tier_writes, 1);
                } else {
                    bump(&control.tier_errors, 1);
                }
                self.engine.ring();
                idle = false;
            }
            // SAFETY: this is the tier's thread.
            if let Some(page) = idle.then(|| unsafe { self.below.order.next() }).flatten() {
                self.bring_ahead(page);
                idle = false;
            }
            if idle {
                if self.below.ending.load(Acquire) != 0 {
                    return;
                }
                self.restorer.wipe();
                self.restorer.arrived.wipe();
                thread::sleep_on(&self.below.bell, bell, SLEEP);
            }
        }
    }

    /// Brings back a page that a thread waits for, and what left with it.
    fn bring(&mut self, page: usize) {
        let (engine, kernel, below) = (self.engine, self.kernel, self.below);
        // Whoever has the turn may be waiting for one of these.
        let others = || {
            answer_asks(engine, below);
        };
        if let Some((extent, cluster)) = bring(engine, kernel, below, &mut self.restorer, page, others) {
            // SAFETY: this is the tier's thread.
            unsafe { below.order.note(page) };
            self.bring_rest(extent, cluster);
        }
    }

    /// Brings back the cluster of a page that is likely to be wanted soon.
    fn bring_ahead(&mut self, page: usize) {
        if let Some((_, berth)) = fetch(self.engine, self.below, page, &mut self.restorer.arrived) {
            if let Some(extent) = self.engine.space().find(page) {
                self.bring_rest(extent, berth.cluster);
            }
        }
    }

    /// The other pages of the cluster, as far as there is room and nobody waits.
    fn bring_rest(&mut self, extent: &Extent, cluster: u32) {
        let Some(entries) = extent.entries() else { return };
        let of_cluster = |entry: Entry| Location::below(entry).is_some_and(|berth| berth.cluster == cluster);
        let mut index = 0;
        while let Some(next) = (index..EXTENT_PAGES).find(|&index| of_cluster(entries[index].load())) {
            let end = (next..EXTENT_PAGES).find(|&index| !of_cluster(entries[index].load()));
            let pages = end.unwrap_or(EXTENT_PAGES) - next;
            if (pages as u64) > self.engine.room.left() || self.engine.traffic.brake.wanted() {
                return;
            }
            let Service { below, restorer, .. } = self;
            let outcome =
                below.restoring(|| restorer.restore(extent, PageRange::from(next, pages), Reason::Ahead));
            index = match outcome {
                Outcome::Done { first, pages } => (first + pages).max(next + 1),
                _ => next + 1,
            };
        }
    }
}

/// Fetches what others ask for. Whether anybody did.
fn answer_asks(engine: &Engine, below: &Below) -> bool {
    let mut any = false;
    for ask in &below.asks {
        if let Some((page, arrived)) = ask.taken() {
            // SAFETY: it is ours until it is answered.
            let arrived = unsafe { &mut *arrived };
            fetch(engine, below, page, arrived);
            ask.answer();
            any = true;
        }
    }
    any
}
