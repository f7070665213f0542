//! The share of a budget that a daemon grants a process which folds itself, and how long the grant holds.
//!
//! The daemon writes the share to the control page about once a second and counts each time, [`Share`]. The background
//! thread takes a share only while that goes on, [`Lease`]: a daemon that is gone, however it went, binds nobody.
//!
//! What it is not: a setting. The limit that the user chose stays what it is and holds beside the share.
//!
//! Invariants: a share comes from another process and may be any number; it decides only how eagerly is folded. Time is
//! measured by this process's own clock, from when it saw the count change, so the daemon's clock does not matter.

use crate::config::Setting;
use crate::shared_text::SharedText;
use core::sync::atomic::{AtomicU64, Ordering::*};
use memfold_sys::time::Nanos;

/// How long a share holds after it was last renewed: five missed renewals.
pub const LEASE: Nanos = Nanos::from_secs(5);

/// What a daemon writes to the control page.
#[repr(C)]
pub struct Share {
    /// Bytes that the process may keep resident, what evicting costs included. `u64::MAX` for no limit.
    pub bytes: AtomicU64,
    /// Bytes that the process may take of the tier; 0 for none so far.
    pub tier_bytes: AtomicU64,
    /// The tier that the daemon's programs share, as [`crate::tier::choice::Choice`] reads it; empty for none.
    pub tier: SharedText<64>,
    /// How often the share was written. Any change is a renewal; incremented after `bytes` was written.
    pub renewals: AtomicU64,
}

/// What the process makes of it. The background thread's own.
pub(crate) struct Lease {
    renewals: u64,
    granted: Option<(Nanos, u64)>,
}

impl Lease {
    /// Nothing is granted, whatever an earlier daemon left.
    pub(crate) fn new(share: &Share) -> Lease {
        Lease { renewals: share.renewals.load(Acquire), granted: None }
    }

    /// Looks at what was written by `now`. Whether it was renewed.
    pub(crate) fn look(&mut self, share: &Share, now: Nanos) -> bool {
        // Acquire: who sees a renewal sees the share that was written before it.
        let renewals = share.renewals.load(Acquire);
        let renewed = renewals != self.renewals;
        if renewed {
            self.renewals = renewals;
            let (least, most) = Setting::ResidentLimit.range();
            self.granted = Some((now, share.bytes.load(Relaxed).clamp(least, most)));
        } else if self.granted.is_some_and(|(at, _)| now.since(at) > LEASE) {
            self.granted = None;
        }
        renewed
    }

    /// Bytes that may stay resident by the share in force; `None` while there is none.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.granted.map(|(_, bytes)| bytes)
    }

    /// The managed bytes that should stay in view: what the share leaves beside `overhead` bytes that evicting costs;
    /// `u64::MAX` for no share.
    pub(crate) fn limit(&self, overhead: u64) -> u64 {
        let left = |bytes: u64| match bytes {
            u64::MAX => u64::MAX,
            bytes => bytes.saturating_sub(overhead).max(Setting::ResidentLimit.range().0),
        };
        self.bytes().map_or(u64::MAX, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn share(bytes: u64) -> Share {
        Share {
            bytes: AtomicU64::new(bytes),
            tier_bytes: AtomicU64::new(0),
            tier: SharedText::new(),
            renewals: AtomicU64::new(7),
        }
    }

    fn renew(share: &Share, bytes: u64) {
        share.bytes.store(bytes, Relaxed);
        share.renewals.fetch_add(1, Release);
    }

    #[test]
    fn a_share_that_was_there_before_binds_only_when_it_is_renewed() {
        let share = share(50 * MIB);
        let mut lease = Lease::new(&share);
        lease.look(&share, Nanos(0));
        assert_eq!(lease.bytes(), None);
        renew(&share, 50 * MIB);
        lease.look(&share, Nanos(0));
        assert_eq!(lease.bytes(), Some(50 * MIB));
    }

    #[test]
    fn a_share_lapses_when_it_is_no_longer_renewed_and_comes_back_with_the_next_daemon() {
        let share = share(0);
        let mut lease = Lease::new(&share);
        renew(&share, 50 * MIB);
        lease.look(&share, Nanos::from_secs(10));
        lease.look(&share, Nanos::from_secs(10) + LEASE);
        assert_eq!(lease.limit(0), 50 * MIB);
        lease.look(&share, Nanos::from_secs(11) + LEASE);
        assert_eq!(lease.limit(0), u64::MAX);
        renew(&share, 60 * MIB);
        lease.look(&share, Nanos::from_secs(12) + LEASE);
        assert_eq!(lease.limit(0), 60 * MIB);
    }

    #[test]
    fn a_share_counts_what_evicting_costs_and_never_leaves_less_than_a_limit_may_be() {
        let share = share(0);
        let mut lease = Lease::new(&share);
        renew(&share, 50 * MIB);
        lease.look(&share, Nanos(0));
        assert_eq!(lease.limit(20 * MIB), 30 * MIB);
        assert_eq!(lease.limit(u64::MAX), MIB);
        renew(&share, 0);
        lease.look(&share, Nanos(0));
        assert_eq!(lease.limit(0), MIB);
        renew(&share, u64::MAX);
        lease.look(&share, Nanos(0));
        assert_eq!(lease.limit(20 * MIB), u64::MAX);
    }
}
