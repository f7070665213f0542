//! The processes that experiments measure: each is this same executable, started again as one arm.
//!
//! What it is: the job given to such a process, the two ends of the pipe between it and the experiment, and the
//! loops that it runs. All arms run the same code on the same data; only the environment they were started in differs.
//!
//! What it is not: an experiment. A worker knows nothing of arms, rounds or ratios.
//!
//! Invariants: a worker dies with the process that started it; it writes nothing to standard output but its answers,
//! one JSON object a line.

pub(crate) mod alloc;
mod beat;
mod heap;
mod host;
mod mapper;
mod mapping;
mod region;
mod sleeper;
mod spin;
mod touch;

pub(crate) use alloc::BLOCKS_A_SECOND;
pub use alloc::{Ask, Hello, Loop, Pattern, Phase, Written};
pub use beat::{Beat, BeatRequest};
pub use heap::{Heap, HeapRequest, PagedOut};
pub(crate) use host::reap;
pub use host::{Cost, Program, Worker};
pub use mapper::{By, Mapper, MapperResult};
pub use mapping::Presence;
pub use sleeper::Sleeper;
pub use spin::{Spin, SpinResult};
pub use touch::{Order, Region, Round, Touch, TouchRequest, TouchResult, Traced};

use crate::workload::Workload;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What a worker is to do, given to it as JSON on its command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum Job {
    /// Keep a region and time touches to its pages on request.
    Touch(Touch),
    /// Run a loop of malloc and free for as long as is asked, again and again.
    Alloc(Loop),
    /// Touch a region at random all the time, then report.
    Spin(Spin),
    /// Take memory and give it back all the time, then report.
    Map(Mapper),
    /// Hold the pages of a file, and compare them in the end.
    Heap(Heap),
    /// Have many threads look at the clock, and say for how long one did not.
    Beat(Beat),
    /// Fill a region and sleep.
    Sleep(Sleeper),
    /// Fill memory and say so, run a workload when asked, report, and keep the memory until the experiment goes away.
    Workload(Workload),
}

/// The body of a worker process. Returns when the job is done or the experiment has gone away.
///
/// # Errors
/// When `job` is not a [`Job`], or what the job met.
pub fn main(job: &str) -> Result<()> {
    // SAFETY: asks the kernel for a signal; no memory involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    match serde_json::from_str(job).with_context(|| format!("not a worker's job: {job}"))? {
        Job::Touch(touch) => touch::serve(&touch),
        Job::Alloc(job) => alloc::serve(&job),
        Job::Spin(spin) => answer(&spin::run(&spin)?),
        Job::Map(mapper) => answer(&mapper::run(&mapper)?),
        Job::Heap(heap) => heap::serve(&heap),
        Job::Beat(beat) => beat::serve(&beat),
        Job::Sleep(sleeper) => sleeper::serve(&sleeper),
        Job::Workload(workload) => serve(&workload),
    }
}

fn serve(workload: &Workload) -> Result<()> {
    let mut prepared = workload.prepare()?;
    prepared.register_under_daemon()?;
    answer(&())?;
    while request::<()>()?.is_some() {
        answer(&prepared.run()?)?;
    }
    Ok(())
}

fn answer(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The next request, `None` when the experiment closed the pipe.
fn request<T: for<'a> Deserialize<'a>>() -> Result<Option<T>> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).with_context(|| format!("not a request: {line}")).map(Some)
}

/// Binds the calling thread to one CPU.
fn pin(cpu: usize) -> Result<()> {
    // SAFETY: an all-zero set is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        bail!("there is no CPU {cpu}");
    }
    // SAFETY: `set` is valid and `cpu` is within it; the call reads the set only.
    let result = unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
    };
    if result != 0 {
        bail!("cannot run on CPU {cpu}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}
