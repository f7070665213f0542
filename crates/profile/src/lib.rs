//! A profile of a process's heap: which code holds how much memory, and how much of that nobody touches.
//!
//! What it is: from the sampled blocks that a process tells of ([`memfold_pager::samples`]) to bytes by call stack ([`Profile`]), with
//! names ([`Names`]), as a file for pprof ([`pprof`]), as folded stacks ([`folded`]) and as a flame graph ([`flame`]).
//! What it is not: the sampling, or asking for it.
//!
//! Invariants: whatever a process says and whatever is in its files, reading ends; no name of either steers a terminal.

pub mod flame;
pub mod folded;
mod frame;
mod names;
pub mod pprof;
mod profile;
mod program;

pub use frame::Frame;
pub use names::Names;
pub use profile::{By, Bytes, Profile, Stack};
