//! The thread of the tier: fetches what is wanted from below memory, puts it in place, and writes what goes down.
//!
//! It waits for the disk so that the fault thread need not. Before it takes a page's entry it has read the page: an entry is held for no longer
//! than it takes to decompress a page, so that whoever changes a mapping or forks waits for no disk either.
//!
//! Invariants: a page that was wanted is in place, or whoever waits for it is woken to ask again. A cluster that cannot be read, or is not what
//! was written, ends the process: going on would lose bytes.

use super::arrived::Arrived;
use super::below::Below;
use super::location::{Berth, Location};
use crate::control::bump;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::extent::Extent;
use crate::kernel::Kernel;
use crate::restore::{Outcome, Reason, Restorer};
use crate::retry::patiently;
use crate::sabotage::{planted, Bug};
use crate::text::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, Backoff};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{mem, Errno, EXTENT_PAGES, PAGE_SIZE};

/// How often a cluster that cannot be read is tried, and how far apart at first; each pause is twice the last.
const TRIES: u32 = 7;
const PAUSE: Nanos = Nanos::from_millis(5);
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
    let (Some(kernel), Some(below), Ok(restorer)) =
        (engine.kernel(), engine.below(), patiently(Restorer::new))
    else {
        engine.fail_hard("memfold: no memory for the thread of the tier");
    };
    Service { engine, kernel, below, restorer }.run();
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
            idle &= !self.answer_asks();
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

    /// Fetches what others ask for. Whether anybody did.
    fn answer_asks(&self) -> bool {
        let mut any = false;
        for ask in &self.below.asks {
            if let Some((page, arrived)) = ask.take() {
                fetch(self.engine, self.below, page, arrived);
                ask.answer();
                any = true;
            }
        }
        any
    }

    /// Brings back a page that a thread waits for, and what left with it.
    fn bring(&mut self, page: usize) {
        let Some(extent) = self.engine.space().find(page) else { return self.wake(page) };
        let index = (page - extent.base()) / PAGE_SIZE;
        let mut backoff = Backoff::new();
        loop {
            let Some((_, berth)) = fetch(self.engine, self.below, page, &mut self.restorer.arrived) else {
                // Somebody was quicker, or dropped it: a touch tells what it is now.
                return self.wake(page);
            };
            match self.restorer.restore(self.engine, self.kernel, extent, index, 1, Reason::Late) {
                Outcome::Done { .. } => {
                    self.wake(page);
                    extent.last_restore.store(time::now().0, Relaxed);
                    return self.bring_rest(extent, berth.cluster);
                }
                Outcome::TryAgain => {
                    // Whoever has the turn may be waiting for one of these.
                    self.answer_asks();
                    backoff.wait();
                }
                // It was moved to another place meanwhile.
                Outcome::Pending => {}
                // Whoever has it wakes who waits; but if that was before the page was asked for, nobody does.
                Outcome::InOtherHands | Outcome::Resident | Outcome::Gone => return self.wake(page),
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
            if (pages as u64) > self.engine.room.left() || self.engine.brake.wanted() {
                return;
            }
            let outcome = self.restorer.restore(self.engine, self.kernel, extent, next, pages, Reason::Ahead);
            index = match outcome {
                Outcome::Done { first, pages } => (first + pages).max(next + 1),
                _ => next + 1,
            };
        }
    }

    fn wake(&self, page: usize) {
        if !planted(Bug::TierWakeLost) {
            self.kernel.uffd.wake(page, PAGE_SIZE);
        }
    }
}

/// Fetches the cluster of the page at this address, for as long as its entry names one. Returns the entry and the berth that it named. The
/// tier's thread, or one beside which there is none.
pub fn fetch(engine: &Engine, below: &Below, page: usize, arrived: &mut Arrived) -> Option<(Entry, Berth)> {
    let extent = engine.space().find(page)?;
    let index = (page - extent.base()) / PAGE_SIZE;
    let (mut tries, mut pause) = (0, PAUSE);
    loop {
        let entry = extent.entry(index);
        let berth = Location::below(entry).filter(|_| !entry.is_busy())?;
        let began = time::now();
        let error = match below.fetch(berth.cluster, arrived) {
            Ok(fetched) => {
                if fetched {
                    engine.control().tier_read_ns.record(time::now().since(began).0);
                }
                return Some((entry, berth));
            }
            Err(error) => error,
        };
        bump(&engine.control().tier_errors, 1);
        if extent.entry(index) != entry {
            continue;
        }
        tries += 1;
        if tries == TRIES {
            fail(engine, below, berth, error);
        }
        time::sleep(pause);
        pause = pause + pause;
    }
}

/// Ends the process, which would read something else than it wrote.
fn fail(engine: &Engine, below: &Below, berth: Berth, error: Errno) -> ! {
    let mut line = Line::new();
    let block = below.clusters.place(berth.cluster).map_or(0, |place| place.block());
    let what = match error {
        Errno(libc::EBADMSG) => "is not what was written there",
        _ => "cannot be read",
    };
    let _ = write!(
        line,
        "memfold: what lies in the tier's file at byte {} {what} ({}): the program must not go on",
        block * super::BLOCK,
        error.name()
    );
    engine.fail_hard(line.as_str());
}
