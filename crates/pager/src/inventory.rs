//! Taking inventory: all resident memory of the process, and for each page why it is not folded ([`crate::why`]).
//!
//! One walk over the mappings as `/proc/self/maps` lists them, extent by extent, each with one look at its page tables. What the pager's
//! tables know of a page of a private anonymous mapping goes first, then what the mapping is.
//!
//! It is done when somebody asks, and of the background thread's own accord ever more rarely: what is known last is then at most
//! half as old as the process, or [`RAREST`]. It takes CPU time from the pager's budget like all else.
//!
//! Background thread only. It tries the locks of extents, and lets others go on between two extents.

mod taking;

use core::sync::atomic::AtomicU64;
use memfold_sys::time::Nanos;

/// The first inventory of a process's life, and the longest time from one to the next.
const FIRST: Nanos = Nanos::from_secs(1);

const RAREST: Nanos = Nanos::from_secs(60);

/// So many times as long as one has taken it is until the next.
const SHARE: u64 = 1000;

/// What was counted last, on the control page.
#[repr(C)]
pub struct Inventory {
    /// `CLOCK_MONOTONIC` when it was taken, ns; 0 for never.
    pub taken_ns: AtomicU64,
    /// How long that took, ns.
    pub took_ns: AtomicU64,
    /// Resident bytes of the process as the kernel counts them, the mean of before and after.
    pub resident_bytes: AtomicU64,
    /// Bytes by [`crate::why::Why`].
    pub bytes: [AtomicU64; crate::why::REASONS],
}

/// When the next inventory is due of the pager's own accord.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    began: Nanos,
    next: Nanos,
}

impl Schedule {
    /// Of a background thread that begins at `now`.
    pub(crate) fn new(now: Nanos) -> Schedule {
        Schedule { began: now, next: now + FIRST }
    }

    /// One was taken, which was over at `now` and took `took` ns.
    fn taken(&mut self, now: Nanos, took: u64) {
        let pause = now.since(self.began).clamp(FIRST, RAREST);
        self.next = now + Nanos(pause.0.max(took.saturating_mul(SHARE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inventories_become_rare_as_the_process_grows_old_and_rarer_where_they_take_long() {
        let at = Nanos::from_secs;
        let mut schedule = Schedule::new(at(10));
        assert_eq!(schedule.next, at(11));
        schedule.taken(at(11), 1_000);
        assert_eq!(schedule.next, at(12));
        schedule.taken(at(18), 1_000);
        assert_eq!(schedule.next, at(26));
        schedule.taken(at(1_000), 1_000);
        assert_eq!(schedule.next, at(1_060));
        schedule.taken(at(1_060), 100_000_000);
        assert_eq!(schedule.next, at(1_160));
    }
}
