//! What touches of pages that are away cost the program: for how long its threads have waited, and what one wait is made of.
//!
//! Times are in ns. The fault thread writes `stall`, `stall_looking`, `last_service` and `last_outside`; what is measured at the start the background
//! thread writes, and `ahead` whoever wakes a thread that another agent than the fault thread had waiting.

use core::sync::atomic::{AtomicU64, Ordering::*};
use memfold_sys::time::{self, Nanos};

/// The waits.
pub(crate) struct Latency {
    /// Waiting of the program's threads since the start.
    pub stall: AtomicU64,
    /// That of it which was for pages that were only set aside.
    pub stall_looking: AtomicU64,
    /// What the last fault cost the fault thread.
    pub last_service: AtomicU64,
    /// What a fault takes beside the fault thread's own work: entering the kernel, and two wake-ups. Measured at start.
    pub wake_cost: AtomicU64,
    /// What entering the kernel by a fault and leaving it takes. Measured at start.
    pub entry_cost: AtomicU64,
    /// What a thread waited outside of the fault thread's sight when it was last measured. For the measurement at the start.
    pub last_outside: AtomicU64,
    /// How many threads may have waited for a page that another agent than the fault thread was bringing, without their messages
    /// being read.
    ahead: AtomicU64,
    /// The longest that one of them can have waited.
    longest_ahead: AtomicU64,
}

/// Waits that another agent than the fault thread ended.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// How many since the start.
    pub waits: u64,
    /// The longest that one can have taken, ns.
    pub longest: u64,
}

impl Latency {
    /// Nobody has waited, and nothing was measured.
    pub const fn new() -> Latency {
        Latency {
            stall: AtomicU64::new(0),
            stall_looking: AtomicU64::new(0),
            last_service: AtomicU64::new(0),
            wake_cost: AtomicU64::new(0),
            entry_cost: AtomicU64::new(0),
            last_outside: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            longest_ahead: AtomicU64::new(0),
        }
    }

    /// Somebody may have waited since `began` for what another agent than the fault thread has in hand, whose message was not read.
    pub fn note_ahead(&self, began: Nanos) {
        self.longest_ahead.fetch_max(time::now().since(began).0, Relaxed);
        self.ahead.fetch_add(1, Release);
    }

    /// Who did.
    pub fn ahead(&self) -> Ahead {
        let waits = self.ahead.load(Acquire);
        Ahead { waits, longest: self.longest_ahead.load(Relaxed) }
    }

    /// The waits so far were the parent's, in a forked child.
    pub fn reset_in_child(&self) {
        self.stall.store(0, Relaxed);
        self.stall_looking.store(0, Relaxed);
    }
}
