//! The counters of the control page, in a model: nothing is decided by them, so loom need not know of them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters that the modelled files write.
#[derive(Default)]
pub struct ControlPage {
    pub extents_registered: AtomicU64,
    pub pages_by_codec: [AtomicU64; 16],
    pub pages_discarded: AtomicU64,
    pub pages_evicted: AtomicU64,
    pub pages_incompressible: AtomicU64,
    pub pages_lost: AtomicU64,
    pub pages_prefetched: AtomicU64,
    pub pages_recompressed: AtomicU64,
    pub pages_restored: AtomicU64,
    pub pages_same_value: AtomicU64,
    pub pages_second_chance: AtomicU64,
    pub pages_set_aside: AtomicU64,
    pub ranges_added: AtomicU64,
    pub ranges_removed: AtomicU64,
    pub tier_errors: AtomicU64,
    pub tier_read_ns: Histogram,
    pub tier_read_bytes: AtomicU64,
    pub tier_wait_ns: AtomicU64,
    pub tier_waits: AtomicU64,
}

/// Nothing is counted.
#[derive(Default)]
pub struct Histogram;

impl Histogram {
    pub fn record(&self, _: u64) {}
}

/// As in the pager.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
