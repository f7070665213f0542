//! Counters of what the arena holds and of the kernel calls it made.
//!
//! What it is: relaxed atomics, written off the fast path, read by `mallinfo2`, `malloc_stats` and the
//! statistics of the preload library. Nothing is decided by them, so they need no order among themselves.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One counter, or a gauge that also falls.
#[derive(Default)]
pub struct Counter(AtomicUsize);

impl Counter {
    /// Zero.
    pub const fn new() -> Counter {
        Counter(AtomicUsize::new(0))
    }

    /// Its value now.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Adds `n`.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Takes `n` away again.
    pub fn sub(&self, n: usize) {
        self.0.fetch_sub(n, Relaxed);
    }
}

/// All counters of the arena, over both domains.
pub struct Counters {
    /// Bytes of address space mapped for blocks.
    pub mapped_bytes: Counter,
    /// Bytes of pinned memory mapped for the allocator's own records.
    pub record_bytes: Counter,
    /// Bytes in spans that are handed out.
    pub span_bytes: Counter,
    /// Bytes in free runs that may still be resident.
    pub cached_bytes: Counter,
    /// Spans handed out that hold one block each.
    pub large_blocks: Counter,
    /// Bytes in those.
    pub large_bytes: Counter,
    /// Calls of `mmap`.
    pub mmap_calls: Counter,
    /// Calls of `munmap`, by hook or directly.
    pub munmap_calls: Counter,
    /// Calls of `madvise`, by hook or directly.
    pub madvise_calls: Counter,
    /// Calls of `mremap`, by hook or directly.
    pub mremap_calls: Counter,
    /// Calls of `mprotect`, by hook or directly.
    pub mprotect_calls: Counter,
}

/// The process's counters.
pub static COUNTERS: Counters = Counters {
    mapped_bytes: Counter::new(),
    record_bytes: Counter::new(),
    span_bytes: Counter::new(),
    cached_bytes: Counter::new(),
    large_blocks: Counter::new(),
    large_bytes: Counter::new(),
    mmap_calls: Counter::new(),
    munmap_calls: Counter::new(),
    madvise_calls: Counter::new(),
    mremap_calls: Counter::new(),
    mprotect_calls: Counter::new(),
};
