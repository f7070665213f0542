//! The atomics and cells of what threads share, in one place.
//!
//! The models (crate `models`) include the files that use this and put loom's in their stead.

pub use core::cell::Cell;
// What is only a hint: in the models loom does not look at it.
pub use core::sync::atomic::AtomicU32 as Hint;
pub use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Ordering};
