//! How the program runs at the moment, as one agent has seen it and tells the others.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_policy::walk;
use memfold_sys::time::Nanos;

/// The conditions.
pub(crate) struct Conditions {
    /// 1 while more threads want to run than there are CPUs. Until that was looked at it is taken to be so.
    contended: AtomicU32,
    /// When memory was last seen to be walked through, ns.
    last_walk: AtomicU64,
    /// 1 while there is CPU time to fold with, and so to bring back what may not be wanted.
    may_fold: AtomicU32,
}

impl Conditions {
    /// Nothing was seen.
    pub const fn new() -> Conditions {
        Conditions { contended: AtomicU32::new(1), last_walk: AtomicU64::new(0), may_fold: AtomicU32::new(0) }
    }

    /// Whether more threads want to run than there are CPUs.
    pub fn are_contended(&self) -> bool {
        self.contended.load(Relaxed) != 0
    }

    /// Says whether they do.
    pub fn set_contended(&self, contended: bool) {
        self.contended.store(u32::from(contended), Relaxed);
    }

    /// Whether there is CPU time to fold with.
    pub fn may_fold(&self) -> bool {
        self.may_fold.load(Relaxed) != 0
    }

    /// Says whether there is.
    pub fn set_may_fold(&self, may: bool) {
        self.may_fold.store(u32::from(may), Relaxed);
    }

    /// Whether memory is being walked through at `now`, or was a moment ago.
    pub fn is_walked(&self, now: Nanos) -> bool {
        !walk::is_over(now.0, self.last_walk.load(Relaxed))
    }

    /// Memory is being walked through.
    pub fn note_walk(&self, now: Nanos) {
        self.last_walk.store(now.0, Relaxed);
    }
}
