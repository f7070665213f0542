//! The thread of the tier: fetches what is wanted from below memory, puts it in place, and writes what goes down.
//!
//! It waits for the disk so that the fault thread need not. How a page comes back is in [`super::bring`].
//!
//! While it puts one cluster in place, the next is read: of what is wanted, or of what is likely to be soon ([`super::stream`],
//! [`super::order`]). What is wanted of the next goes before the rest of the one before, which is kept until there is time.
//!
//! Invariants: what is wanted comes before what goes down, one cluster at a time. What is read while something else is done is only taken over
//! where it is what an entry names when that entry was taken.

use super::arrived::Arrived;
use super::below::Below;
use super::bring::{bring, fetch};
use super::location::Location;
use super::reading::Reading;
use super::stream::Stream;
use super::CLUSTER;
use crate::control::bump;
use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::sleep::TOUCHES;
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
    thread::set_name(thread::agent_name::TIER);
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(0);
    keep_stack_out_of_cores();
    let restorer = engine.kernel().map(|kernel| patiently(|| Restorer::new(engine, kernel)));
    let (Some(below), Some(Ok(restorer))) = (engine.below(), restorer) else {
        engine.fail_hard("memfold: no memory for the thread of the tier");
    };
    let (kernel, reading) = (restorer.kernel, Reading::new(below));
    let before = (None, Arrived::new());
    Service {
        engine,
        kernel,
        below,
        restorer,
        rest: None,
        before,
        reading,
        ahead: None,
        stream: Stream::default(),
        wanted: 0,
    }
    .run();
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

/// What is yet to come of a cluster of which a page was wanted, or that is brought ahead.
struct Rest {
    extent: &'static Extent,
    cluster: u32,
    /// The page that is looked at next.
    index: usize,
}

/// Pages of the rest that come back at once: somebody may want another page meanwhile. Half of them while what somebody waits for is on its way.
const PIECE: usize = 8;

struct Service {
    engine: &'static Engine,
    kernel: &'static Kernel,
    below: &'static Below,
    restorer: Restorer,
    rest: Option<Rest>,
    /// What of the cluster before is yet to come, and that cluster.
    before: (Option<Rest>, Arrived),
    /// What is being read while the rest of the cluster before is put in place.
    reading: Reading,
    /// A page of that, where nobody has asked for it, and whether it is of the stream.
    ahead: Option<(usize, bool)>,
    stream: Stream,
    /// Pages that somebody waited for since it was last said that a program which sleeps wants many.
    wanted: u64,
}

impl Service {
    fn run(mut self) {
        loop {
            let bell = self.below.bell.load(Acquire);
            let (mut idle, mut woke) = (true, false);
            while let Some(page) = self.below.take_wanted() {
                woke |= self.bring(page);
                idle = false;
            }
            idle &= !answer_asks(self.engine, self.below);
            self.reading.take_back();
            self.look_ahead();
            self.lend();
            if woke && !self.engine.conditions.are_contended() {
                // Who was woken may have to run here, and may want the next page at once. Where no CPU is idle, others would too, and for long.
                thread::give_way();
                continue;
            }
            if self.bring_piece() {
                continue;
            }
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
            self.reading.take_back();
            idle &= !self.bring_ahead();
            if idle {
                if self.below.ending.load(Acquire) != 0 {
                    return;
                }
                self.restorer.wipe();
                self.restorer.arrived.wipe();
                self.before.1.wipe();
                self.reading.wipe();
                self.lend();
                thread::sleep_on(&self.below.bell, bell, SLEEP);
            }
        }
    }

    /// Brings back a page that a thread waits for. What left with it comes behind. Whether it came.
    fn bring(&mut self, page: usize) -> bool {
        bump(&self.engine.control().tier_asked_bytes, PAGE_SIZE as u64);
        self.stream.wanted(page);
        self.reading.take_back();
        let again = self.read(page);
        // Who is woken may run in our place from then on, and touch the next page.
        self.lend();
        let in_order = self.stream.is_going() || again;
        let most = if in_order && self.has_room(CLUSTER) { CLUSTER } else { 1 };
        let (engine, kernel, below) = (self.engine, self.kernel, self.below);
        // Whoever has the turn may be waiting for one of these.
        let others = || {
            answer_asks(engine, below);
        };
        let brought = bring(engine, kernel, below, &mut self.restorer, page, most, others);
        if let Some((extent, cluster)) = brought {
            // SAFETY: this is the tier's thread.
            unsafe { below.order.note(page) };
            self.bring_rest(extent, cluster, page + PAGE_SIZE, false);
        }
        self.wanted += 1;
        if self.wanted > TOUCHES && engine.control().asleep.load(Relaxed) != 0 {
            // It is awake, which the background thread has yet to see.
            self.wanted = 0;
            engine.ring();
        }
        brought.is_some()
    }

    /// Lets the fault thread ask for what it finds pending, unless it is at hand.
    fn lend(&mut self) {
        let at_hand = [&self.restorer.arrived, &self.before.1].map(|arrived| arrived.cluster().unwrap_or(0));
        self.reading.lend(at_hand);
    }

    /// How many pages of a cluster come back at once. A reader in order wants the next of them, and would wait for each piece.
    fn at_once(&self) -> usize {
        match self.stream.is_going() {
            true => CLUSTER,
            false if self.reading.cluster().is_some() => PIECE / 2,
            false => PIECE,
        }
    }

    /// Reads the cluster of a page, if it was not, and puts the rest of those before in place meanwhile. Whether it was there: the program is quicker
    /// than the rest comes.
    fn read(&mut self, page: usize) -> bool {
        let Some((_, cluster)) = self.cluster_of(page) else { return false };
        if self.restorer.arrived.is(cluster, &self.below.clusters) {
            return true;
        }
        if self.before.1.is(cluster, &self.below.clusters) {
            self.exchange();
            return true;
        }
        self.ahead = None;
        if self.reading.cluster() != Some(cluster) {
            self.reading.give_up();
            self.reading.begin(cluster);
        }
        while !self.reading.is_over() && self.bring_piece() {}
        if self.rest.is_some() {
            // One is kept, and no more.
            while self.before.0.is_some() && self.bring_piece() {}
            self.exchange();
        }
        self.reading.take(self.engine, &mut self.restorer.arrived);
        false
    }

    /// The cluster before is the one at hand, and the other way round.
    fn exchange(&mut self) {
        core::mem::swap(&mut self.rest, &mut self.before.0);
        core::mem::swap(&mut self.restorer.arrived, &mut self.before.1);
    }

    /// The extent and the cluster of a page that lies below memory.
    fn cluster_of(&self, page: usize) -> Option<(&'static Extent, u32)> {
        let extent = self.engine.space().find(page)?;
        let entry = extent.entry((page - extent.base()) / PAGE_SIZE);
        Some((extent, Location::below(entry).filter(|_| !entry.is_busy())?.cluster))
    }

    /// Begins to read what is likely to be wanted soon, if nothing is being read.
    fn look_ahead(&mut self) {
        if self.ahead.is_some() || self.reading.cluster().is_some() || self.below.is_wanted() {
            return;
        }
        let streamed = self.stream.next();
        // SAFETY: this is the tier's thread.
        let Some(page) = streamed.or_else(|| unsafe { self.below.order.next() }) else { return };
        let found = self.cluster_of(page).filter(|_| self.has_room(CLUSTER));
        if streamed.is_some() && found.is_none() {
            self.stream.end();
        }
        if let Some((_, cluster)) = found {
            if !self.restorer.arrived.is(cluster, &self.below.clusters) {
                self.reading.begin(cluster);
            }
            self.ahead = Some((page, streamed.is_some()));
        }
    }

    /// Has what was read ahead come behind. Whether there was something.
    fn bring_ahead(&mut self) -> bool {
        let Some((page, streamed)) = self.ahead.take() else { return false };
        self.reading.take(self.engine, &mut self.restorer.arrived);
        if let Some((_, berth)) = fetch(self.engine, self.below, page, &mut self.restorer.arrived) {
            if let Some(extent) = self.engine.space().find(page) {
                self.bring_rest(extent, berth.cluster, page, streamed);
            }
        } else if streamed {
            self.stream.end();
        }
        true
    }

    /// The other pages of the cluster that was fetched come next, piece by piece. What was brought already ends at this address.
    fn bring_rest(&mut self, extent: &'static Extent, cluster: u32, end: usize, ahead: bool) {
        let last = extent
            .entries()
            .and_then(|entries| (0..EXTENT_PAGES).rev().find(|&index| is_of(entries[index].load(), cluster)));
        self.stream.brought(last.map_or(end, |last| end.max(extent.page_addr(last) + PAGE_SIZE)), ahead);
        self.rest = Some(Rest { extent, cluster, index: 0 });
    }

    /// Brings a few pages of the rest of a cluster, as far as there is room, of the one before first. False where there are none.
    fn bring_piece(&mut self) -> bool {
        if self.before.0.is_some() {
            self.exchange();
            let brought = self.bring_piece_at_hand();
            self.exchange();
            if brought {
                return true;
            }
        }
        self.bring_piece_at_hand()
    }

    fn bring_piece_at_hand(&mut self) -> bool {
        let Some(Rest { extent, cluster, index }) = self.rest.take() else { return false };
        let Some(entries) = extent.entries() else { return false };
        let of_cluster = |index: &usize| is_of(entries[*index].load(), cluster);
        let Some(next) = (index..EXTENT_PAGES).find(of_cluster) else { return false };
        let most = (next + self.at_once()).min(EXTENT_PAGES);
        let pages = (next..most).find(|index| !of_cluster(index)).unwrap_or(most) - next;
        if !self.has_room(pages) {
            return false;
        }
        let Service { engine, below, restorer, .. } = self;
        let restore = || restorer.restore(extent, PageRange::from(next, pages), Reason::Ahead);
        let index = match below.restoring(&engine.children, restore) {
            Some(Outcome::Done { first, pages }) => (first + pages).max(next + 1),
            Some(_) => next + 1,
            // What is wanted of the rest is touched.
            None => return false,
        };
        self.rest = Some(Rest { extent, cluster, index });
        true
    }

    /// Whether so many pages may come back that nobody waits for.
    fn has_room(&self, pages: usize) -> bool {
        pages as u64 <= self.engine.room.left() && !self.engine.traffic.brake.wanted()
    }
}

fn is_of(entry: Entry, cluster: u32) -> bool {
    Location::below(entry).is_some_and(|berth| berth.cluster == cluster)
}

/// Fetches what others ask for. Whether anybody did.
fn answer_asks(engine: &Engine, below: &Below) -> bool {
    let mut any = false;
    for ask in &below.asks {
        if let Some((page, arrived)) = ask.taken() {
            // SAFETY: it is ours until it is answered.
            let arrived = unsafe { &mut *arrived };
            bump(&engine.control().tier_asked_bytes, PAGE_SIZE as u64);
            fetch(engine, below, page, arrived);
            ask.answer();
            any = true;
        }
    }
    any
}
