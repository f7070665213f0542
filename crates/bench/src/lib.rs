//! The laboratory: the experiments behind every figure that memfold claims, and the program that verifies that
//! no byte is lost.
//!
//! What it is: workloads, the arms they run in, and results with their raw runs and manifest. Each experiment declares its options
//! once, as `memfold bench` takes them and as its result shows them, and fills in the skeleton ([`experiment`]).
//!
//! What it is not: the command `memfold bench`, which starts experiments and prints their results; and not a judge: a result says
//! what was measured, the reader compares it with the aim.
//!
//! Invariants: an experiment interleaves its arms and keeps every raw run; one in which nothing was evicted, or in
//! which a byte was wrong, fails and yields no figures.

pub mod ab;
pub mod alloc;
pub mod arguments;
mod backing;
pub mod content;
pub mod control;
pub mod experiment;
pub mod fault;
pub mod fold;
mod hogs;
pub mod launch;
pub mod overhead;
pub mod pagedaemon;
pub mod pauses;
pub mod process;
pub mod programs;
pub mod redis;
pub mod sources;
mod swap;
mod swapfile;
mod undo;
pub mod verify;
pub mod worker;
pub mod workload;
pub mod zram;
mod zswap;

pub use memfold_experiment::{course, manifest, output, Unsupported};
