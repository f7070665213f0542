//! The atomics of what threads share, in one place.
//!
//! The models (crate `models`) include the files that use this and put loom's in their stead.

pub use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How often a loop that may sleep looks again before it does.
pub const fn spins(wanted: u32) -> u32 {
    wanted
}
