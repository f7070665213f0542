//! Loops of malloc and free: one pattern of use, run by some threads for as long or as many steps as is asked.
//!
//! What it is not: Rust's allocator. The loops call `malloc` and its kin by their C names, so that the preloaded library,
//! or its absence, decides who answers. Nor a set of real programs; `string_map.cpp` is the nearest to one.
//!
//! Invariants: tables and counts are mapped or on the stack, not allocated, so all allocators start with equal hands;
//! a phase goes on where the last one ended; blocks stay as they are between phases, so that memory can be looked at. What
//! an allocator must keep (zeros, alignment, contents) is checked, and a breach ends the worker.

mod actor;
mod cross;
mod drive;
mod life;
mod slots;

pub(crate) use life::BLOCKS_A_SECOND;

use super::{answer, request};
use anyhow::{ensure, Result};
use memfold_stats::Histogram;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::path::PathBuf;

memfold_experiment::named! {
    /// What a loop does with blocks.
    pub enum Pattern, "pattern" {
        /// Slots are taken at random; a full one is freed, an empty one gets a block.
        Mixed = "mixed",
        /// As `Mixed`, with zeroed blocks.
        Calloc = "calloc",
        /// As `Mixed`, with blocks aligned to 16 to 4096 bytes.
        Aligned = "aligned",
        /// Blocks grow by half up to the largest size, then shrink by halves, and are freed.
        Realloc = "realloc",
        /// Blocks are replaced at random; after some thousand calls a thread goes on with another one's blocks.
        Larson = "larson",
        /// Threads fill batches, exchange them, and free what others allocated.
        Xmalloc = "xmalloc",
        /// Every other thread allocates, and its neighbour frees.
        ProducerConsumer = "producer_consumer",
        /// Blocks live for seconds, minutes or hours of simulated time, and sizes change with the hour.
        Fragmentation = "fragmentation",
        /// Threads write to small blocks that began side by side, and replace them.
        FalseSharing = "false_sharing",
        /// Threads come, allocate, and go, and leave blocks that others free.
        ThreadChurn = "thread_churn",
        /// A C++ program with strings and maps, which the experiment compiles; not run by this worker.
        StringMap = "string_map",
    }
}

memfold_experiment::named! {
    /// How much of a block is written when it was allocated.
    pub enum Written, "part of a block" {
        /// Its first and last byte.
        Ends = "ends",
        /// A byte on each of its pages too, as a program does that uses what it asks for.
        Pages = "pages",
    }
}

/// A pattern with its measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loop {
    /// What is done.
    pub pattern: Pattern,
    /// Threads that do it.
    pub threads: usize,
    /// Blocks that a thread can hold; without meaning where the pattern itself sets it.
    pub slots: usize,
    /// Smallest block, bytes.
    pub least_bytes: usize,
    /// Largest block, bytes.
    pub most_bytes: usize,
    /// What is written of a block; heeded by the loops over slots.
    pub written: Written,
    /// What sizes, slots and lives are drawn from.
    pub seed: u64,
}

/// The first answer of a worker: whom it got its allocator from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The file that `malloc` is in, as the dynamic linker names it.
    pub malloc_from: PathBuf,
}

/// A request: go on for so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// At most so many milliseconds; 0 for no such limit.
    pub millis: u64,
    /// At most so many steps a thread; 0 for no such limit.
    pub steps: u64,
    /// So many calls of the allocator, over all threads, each of which makes an equal share of them, rounded up, and finishes
    /// the step in which it reaches it; 0 for no such limit.
    pub operations: u64,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Calls of the allocator, over all threads.
    pub operations: u64,
    /// Time of the thread that took longest, ns.
    pub elapsed_ns: u64,
    /// The same a second: the sum of the threads' own rates.
    pub calls_per_s: f64,
    /// Time of sampled steps, ns, within 1/16, the cost of reading the clock subtracted. A step is one call, or a free
    /// and a malloc.
    pub step_ns: Histogram,
}

/// Answers requests until the experiment closes the pipe.
pub(super) fn serve(job: &Loop) -> Result<()> {
    job.check()?;
    answer(&Hello { malloc_from: malloc_from()? })?;
    drive::stage(job, |go_on| {
        while let Some(ask) = request::<Ask>()? {
            answer(&go_on(ask)?)?;
        }
        Ok(())
    })
}

impl Loop {
    /// Whether the measures make sense.
    ///
    /// # Errors
    /// A sentence that names the measure that does not.
    pub fn check(&self) -> Result<()> {
        let Loop { threads, slots, least_bytes, most_bytes, .. } = *self;
        ensure!(slots > 0 && threads > 0, "a loop of malloc and free needs a slot and a thread");
        // Two bytes are written apart; a block that waits to be freed holds a link.
        let least = match self.pattern {
            Pattern::Fragmentation | Pattern::Realloc => 16,
            _ => 2,
        };
        ensure!(
            (least..=most_bytes).contains(&least_bytes),
            "block sizes must ascend from {least} bytes or more, not from {least_bytes} to {most_bytes}"
        );
        ensure!(
            self.pattern != Pattern::ProducerConsumer || threads.is_multiple_of(2),
            "producer_consumer runs in pairs of threads: {threads} is not even"
        );
        Ok(())
    }
}

/// The file that `malloc` was found in.
pub(crate) fn malloc_from() -> Result<PathBuf> {
    // SAFETY: an all-zero Dl_info is valid; the name is a C string, and what dladdr points at lives as long as the
    // library, which nobody unloads.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        ensure!(!found.is_null(), "the dynamic linker knows no malloc");
        ensure!(libc::dladdr(found, &mut info) != 0, "malloc is in no file");
        Ok(CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned().into())
    }
}

/// Ends the worker: the allocator broke a promise.
fn broken(what: &str) -> ! {
    eprintln!("the allocator under test is broken: {what}");
    std::process::exit(1)
}
