//! The allocator: blocks of any size, fast, from any thread.
//!
//! What it is: thread heaps over size classes, on spans of the crate `arena`. One allocation: [`malloc`]
//! reads the thread's heap (`tls`), finds the bin for the size, takes a block; if the bin is empty,
//! `refill` fills it from the heap's `spans`, from what other threads sent (`remote`), from heaps of
//! threads that are gone (`registry`, `orphans`), and at last from the arena. One free: the span is found from the
//! address, and if it belongs to the thread's heap, the block goes into the bin; `flush` empties full ones.
//!
//! No module imports another in a circle: types first (`bin`, `heap`), then what is done to one heap's spans (`spans`), between two heaps
//! (`parcel`, `remote`, `flush`), with all heaps (`registry`, `orphans`), and last what a call does (`refill`, `checked`, `api`).
//!
//! What is freed while the pager has its page away is not touched (`away`, `dormant`).
//!
//! Some blocks are sampled, where somebody asks for it (`sampling`, `samples`): which code they are of, for a profile of the heap.
//!
//! Blocks that the program says it will seldom touch lie in spans of their own (`cold`).
//!
//! With checks on ([`harden`]), every call takes the slow path, and misuse of a block ends the program (`checked`, over `slots`,
//! `quarantine` and `voids`).
//!
//! What it is not: the C interface (that is the preload library), or safe to call from a signal handler.
//!
//! Invariants: no lock is held while a block is touched, because touching managed memory may wait for the
//! pager. Nothing here allocates through libc or sets `errno`. Order of locks: thread-exit key, idle heaps,
//! blocks of no bytes, samples, then those of the arena.
#![no_std]

#[cfg(test)]
extern crate std;

mod ahead;
mod api;
mod away;
mod bin;
mod checked;
pub mod classes;
mod cold;
mod depth;
mod dormant;
mod flush;
mod fork;
mod heap;
mod large;
mod links;
mod misuse;
mod orphans;
mod parcel;
mod quarantine;
mod refill;
mod registry;
mod remote;
mod samples;
mod sampling;
mod slots;
mod span_cache;
mod spans;
pub mod stats;
mod sync;
mod tls;
mod voids;
mod worth;

pub use api::{
    aligned, calloc, free, is_ours, malloc, malloc_at_hand, malloc_slow, realloc, trim, usable_size,
    MAX_REQUEST,
};
pub use away::went_away;
pub use checked::{harden, look_back};
pub use cold::aligned_cold;
pub use fork::{fork_child, fork_parent, fork_prepare};
pub use misuse::Report;
pub use registry::{pinned, with_thread_pointer_of, Pinned};
pub use samples::{sample, samples_from, stack_from, summary, trace_of, Sample, Summary};
pub use sampling::trace;

#[cfg(test)]
mod tests;
