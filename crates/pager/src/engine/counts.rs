//! How much there is of what the pager deals with, as gauges.
//!
//! What they are not: what decides. Each is a sum of what the tables say, which is true page by page; the sum may be a moment late.

use core::sync::atomic::AtomicU64;

/// The sums over all extents.
#[derive(Default)]
pub(crate) struct Counts {
    /// Bytes that may be evicted.
    pub managed: AtomicU64,
    /// Pages set aside.
    pub aside: AtomicU64,
    /// Pages stored, in memory or below it.
    pub stored: AtomicU64,
    /// What all extents have in [`crate::tables::extent::Extent::copies`], or somewhat more.
    pub copies: AtomicU64,
    /// Stored pages that came back before they had been away for long, since the start.
    pub soon_back: AtomicU64,
}

impl Counts {
    /// Nothing.
    pub const fn new() -> Counts {
        Counts {
            managed: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            soon_back: AtomicU64::new(0),
        }
    }
}
