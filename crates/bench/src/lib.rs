//! The laboratory: the experiments behind every figure that memfold claims, and the program that verifies that
//! no byte is lost.
//!
//! What it is: workloads, the arms they run in, and results with their raw runs and manifest.
//!
//! What it is not: the command line, which is `memfold bench`; and not a judge: a result says what was measured,
//! the reader compares it with the aim.
//!
//! Invariants: an experiment interleaves its arms and keeps every raw run; one in which nothing was evicted, or in
//! which a byte was wrong, fails and yields no figures.

pub mod ab;
pub mod alloc;
mod backing;
pub mod content;
pub mod control;
pub mod fault;
pub mod fold;
mod hogs;
pub mod launch;
pub mod overhead;
pub mod pagedaemon;
pub mod process;
pub mod programs;
pub mod redis;
pub mod sources;
mod turns;
pub mod verify;
pub mod worker;
pub mod workload;
pub mod zram;

pub use memfold_record::{manifest, output, progress, Unsupported};
