//! Where the background thread stands in its rounds for the tier ([`crate::evict::demote`]).

use super::below::JOBS;
use memfold_sys::time::Nanos;

/// How far demotion has come.
#[derive(Clone, Copy, Default)]
pub struct Demotion {
    /// The address at which the round over all extents goes on.
    pub at: usize,
    /// When the round began, and when the next may.
    pub next: Nanos,
    /// The extent that each job is of: its address.
    pub extents: [usize; JOBS],
    /// The tier takes no more before then.
    pub full_until: Nanos,
    /// Whether that was said.
    pub told: bool,
    /// The cluster at which compaction goes on.
    pub cluster: u32,
    /// Nothing is compacted before then.
    pub compact_after: Nanos,
}
