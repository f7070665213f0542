//! What the allocator holds, by size class.
//!
//! What it is: a count over all spans, made when somebody asks, so that it costs nothing before. What it is not: a moment's
//! picture; other threads go on meanwhile, and what lies in their bins counts as used.

use crate::classes;
use core::sync::atomic::Ordering::Relaxed;
use memfold_arena::{Domain, Kind};

/// The spans of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Spans.
    pub spans: usize,
    /// Bytes of those.
    pub span_bytes: usize,
    /// Blocks that the program has or a thread keeps at hand.
    pub used_blocks: usize,
}

/// All size classes, by number; see [`classes::block_size`].
pub type Classes = [Class; classes::COUNT];

/// Counts spans and blocks of both domains. Takes the arena's locks, one after the other and for a chunk at a time.
pub fn classes() -> Classes {
    let mut found = [Class::default(); classes::COUNT];
    for domain in [Domain::Managed, Domain::Pinned] {
        memfold_arena::for_each_span(domain, |span| {
            if span.kind() != Kind::Blocks {
                return;
            }
            // A span that is just being handed out may not have its class yet.
            if let Some(class) = found.get_mut(span.class() as usize) {
                class.spans += 1;
                class.span_bytes += span.bytes();
                class.used_blocks += span.used().saturating_sub(span.dormant.load(Relaxed)) as usize;
            }
        });
    }
    found
}

/// Bytes of used blocks over all classes.
pub fn used_bytes(found: &Classes) -> usize {
    found.iter().enumerate().map(|(class, counts)| counts.used_blocks * classes::block_size(class)).sum()
}
