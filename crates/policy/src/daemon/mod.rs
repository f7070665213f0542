//! Page daemons: policies that look at reference bits once a pass, as a kernel's does.
//!
//! What it is not: the pager or the simulator. Both tell a [`PageDaemon`] of the pages that were touched since the last
//! pass, have it make a pass, and look up in which queue each page is. What is [`Place::Free`] may be evicted by then;
//! what is [`Place::Inactive`] is to be watched closely. The same code serves both, so the same touches bring the same
//! decisions.
//!
//! Invariants: pages are numbers below a universe that grows on demand; a page is in at most one queue; on every pass
//! the counters account for every page that a queue gained or lost ([`Row::adds_up`]).

mod adapter;
mod bonchance;
mod freebsd;
mod pid;
mod queues;
mod simulated;

pub use adapter::Adapter;
pub use bonchance::BonChance;
pub use freebsd::FreeBsd;
pub use queues::Parameters;
pub use simulated::Simulated;

/// Time between two passes: FreeBSD's inactive queue is looked at ten times a second (`VM_INACT_SCAN_RATE`), ns.
pub const INTERVAL: u64 = 100_000_000;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Unknown to the daemon: never touched, removed, or evicted.
    Out,
    /// In use.
    Active,
    /// About to go, unless it is touched.
    Inactive,
    /// About to go, and must be cleaned before.
    Laundry,
    /// Given up. Its memory is another page's as soon as one needs it; a touch before that brings it back.
    Free,
}

/// What a pass did, and what came of it. Counts are of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Whether the active queue was scanned.
    pub active_scan: bool,
    /// Whether the inactive queue was scanned.
    pub inactive_scan: bool,
    /// Looked at, in either queue.
    pub scanned: u64,
    /// From the active to the inactive queue.
    pub active_to_inactive: u64,
    /// From the active to the laundry queue.
    pub active_to_laundry: u64,
    /// From the inactive to the active queue.
    pub inactive_to_active: u64,
    /// From the inactive to the free queue.
    pub inactive_to_free: u64,
    /// From the inactive to the laundry queue.
    pub inactive_to_laundry: u64,
    /// From the laundry to the active queue.
    pub laundry_to_active: u64,
    /// Cleaned: from the laundry to the free queue.
    pub laundered: u64,
    /// Touched while free, and back in the active queue.
    pub free_to_active: u64,
    /// Brought ahead while free, without a touch, and in the inactive queue.
    pub free_to_inactive: u64,
    /// Brought ahead from outside, without a touch, to the inactive queue.
    pub brought: u64,
    /// Came from outside to the active queue since the last pass.
    pub arrived: u64,
    /// Left the free queue for outside, because their memory was needed.
    pub evicted: u64,
    /// Removed from the active, inactive, laundry and free queue because the program gave them up.
    pub removed: [u64; 4],
    /// Length of the active queue after the pass.
    pub active: u64,
    /// Length of the inactive queue.
    pub inactive: u64,
    /// Length of the laundry queue.
    pub laundry: u64,
    /// Pages that may be used at once: those of the free queue and what is left below the limit.
    pub free: u64,
    /// Length of the free queue alone.
    pub free_queue: u64,
}

impl Row {
    /// Whether the lengths are those of the pass `before` plus what came and minus what went, queue by queue.
    pub fn adds_up(&self, before: &Row) -> bool {
        let [active, inactive, laundry, free] = self.removed;
        let back = self.inactive_to_active + self.laundry_to_active + self.free_to_active;
        before.active + self.arrived + back
            == self.active + self.active_to_inactive + self.active_to_laundry + active
            && before.inactive + self.active_to_inactive + self.free_to_inactive + self.brought
                == self.inactive
                    + self.inactive_to_active
                    + self.inactive_to_free
                    + self.inactive_to_laundry
                    + inactive
            && before.laundry + self.active_to_laundry + self.inactive_to_laundry
                == self.laundry + self.laundry_to_active + self.laundered + laundry
            && before.free_queue + self.inactive_to_free + self.laundered
                == self.free_queue + self.free_to_active + self.free_to_inactive + self.evicted + free
    }
}

/// A page daemon.
pub trait PageDaemon {
    /// Makes room for page numbers below `universe`; less than before changes nothing.
    fn grow(&mut self, universe: usize);

    /// The page was touched since the last pass, and `written` if it must be cleaned before it goes. One that is out
    /// arrives.
    fn touch(&mut self, page: u32, written: bool);

    /// The page was brought back ahead of a touch that may never come: one that is free or out is inactive now.
    fn bring(&mut self, page: u32);

    /// The program gave the page up.
    fn remove(&mut self, page: u32);

    /// Makes a pass: `limit` pages, at least 1, may be resident, and `elapsed` ns have gone by since the last pass.
    fn pass(&mut self, limit: usize, elapsed: u64) -> Row;

    /// Where the page is now.
    fn place(&self, page: u32) -> Place;

    /// Pages that are active, inactive or to be laundered.
    fn in_use(&self) -> usize;

    /// Takes the page of the free queue whose memory is to be used next: it is out now.
    fn take_free(&mut self) -> Option<u32>;
}

#[cfg(test)]
mod tests;
