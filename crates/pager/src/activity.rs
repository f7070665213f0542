//! What the background thread's time goes to.
//!
//! Invariants: each moment in which the thread works counts for one activity. It is time by the clock: where the thread waits for a
//! CPU, that is in it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use memfold_sys::time::{self, Nanos};

/// What the thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Looking for what is cold: scans of the page tables, write protection, the policy.
    Look,
    /// Moving pages out of the program's view.
    SetAside,
    /// Making dictionaries.
    Learn,
    /// Compressing.
    Compress,
    /// Keeping what was compressed: room in the store, entries, compaction.
    Keep,
    /// Giving the frames back of pages that were compressed.
    Drop,
    /// Anything else: requests, counters, restores ahead of a touch.
    Other,
}

impl Activity {
    /// How many there are.
    pub const COUNT: usize = 7;
    /// Their names, in their order.
    pub const NAMES: [&'static str; Activity::COUNT] =
        ["look", "set aside", "learn", "compress", "keep", "drop", "other"];
}

/// The time that each has taken.
pub(crate) struct Activities {
    now: Activity,
    since: Nanos,
    spent: [u64; Activity::COUNT],
}

impl Activities {
    /// The thread begins to work.
    pub fn new() -> Activities {
        Activities { now: Activity::Other, since: time::now(), spent: [0; Activity::COUNT] }
    }

    /// Goes on with `activity`. Returns what the thread was doing.
    pub fn enter(&mut self, activity: Activity) -> Activity {
        let now = time::now();
        self.spent[self.now as usize] += now.since(self.since).0;
        self.since = now;
        core::mem::replace(&mut self.now, activity)
    }

    /// The thread has slept since the last call.
    pub fn slept(&mut self) {
        self.since = time::now();
    }

    /// Tells the world.
    pub fn show(&self, to: &[AtomicU64; Activity::COUNT]) {
        for (cell, spent) in to.iter().zip(self.spent) {
            cell.store(spent, Relaxed);
        }
    }
}
