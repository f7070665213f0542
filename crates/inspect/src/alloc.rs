//! The allocator's part of a control page as plain numbers.

use memfold_pager::control::AllocCounters;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the allocator held and had done when it last wrote; see `memfold_pager::control::AllocCounters` for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Alloc {
    pub updated_ns: u64,
    pub mapped_bytes: u64,
    pub live_bytes: u64,
    pub cached_bytes: u64,
    pub record_bytes: u64,
    pub large_blocks: u64,
    pub large_bytes: u64,
    pub mmap_calls: u64,
    pub munmap_calls: u64,
    pub madvise_calls: u64,
    pub mprotect_calls: u64,
    pub mremap_calls: u64,
    /// Of size classes that have spans.
    pub classes: Vec<AllocClass>,
}

/// The spans of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocClass {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of its spans.
    pub span_bytes: u64,
    /// Blocks that the program has or its threads keep at hand.
    pub used_blocks: u64,
}

impl Alloc {
    /// Copies the counters.
    pub fn copy(from: &AllocCounters) -> Alloc {
        // Relaxed: statistics.
        let word = |w: &AtomicU64| w.load(Relaxed);
        let classes = from.classes.iter().map(|[block, span, used]| AllocClass {
            block_bytes: word(block),
            span_bytes: word(span),
            used_blocks: word(used),
        });
        Alloc {
            updated_ns: word(&from.updated_ns),
            mapped_bytes: word(&from.mapped_bytes),
            live_bytes: word(&from.live_bytes),
            cached_bytes: word(&from.cached_bytes),
            record_bytes: word(&from.record_bytes),
            large_blocks: word(&from.large_blocks),
            large_bytes: word(&from.large_bytes),
            mmap_calls: word(&from.mmap_calls),
            munmap_calls: word(&from.munmap_calls),
            madvise_calls: word(&from.madvise_calls),
            mprotect_calls: word(&from.mprotect_calls),
            mremap_calls: word(&from.mremap_calls),
            classes: classes.filter(|class| class.span_bytes > 0).collect(),
        }
    }

    /// Calls of the kernel by the allocator.
    pub fn kernel_calls(&self) -> u64 {
        let calls =
            [self.mmap_calls, self.munmap_calls, self.madvise_calls, self.mprotect_calls, self.mremap_calls];
        calls.into_iter().fold(0, u64::saturating_add)
    }
}
