//! A program whose memory comes and goes: threads that take some, touch one page of it and give it back, all the time,
//! beside memory that nobody touches.
//!
//! What it is not: a measure of the memory itself. One page is touched, so what counts is what the taking and giving cost.

use crate::content::{Content, WORDS};
use anyhow::{bail, ensure, Result};
use memfold_sys::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How the memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// `mmap` and `munmap`.
    Mapping,
    /// `malloc` and `free`.
    Block,
}

/// What the threads do and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapper {
    /// How the memory is taken.
    pub by: By,
    /// How much each time, bytes.
    pub bytes: usize,
    /// How many threads do so.
    pub threads: usize,
    /// Memory that is filled first and then left alone, bytes: so that there is something to fold.
    pub idle_bytes: usize,
    /// How long to run before measuring, milliseconds.
    pub settle_millis: u64,
    /// How long to measure, milliseconds.
    pub millis: u64,
    /// What the idle memory holds.
    pub seed: u64,
}

/// What the threads did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapperResult {
    /// Times that memory was taken, touched and given back, a second, by all threads.
    pub turns_per_s: f64,
}

pub(super) fn run(mapper: &Mapper) -> Result<MapperResult> {
    ensure!(mapper.bytes >= PAGE_SIZE && mapper.threads > 0, "at least a page and a thread are needed");
    let content = Content::uniform(mapper.seed);
    let mut idle = vec![0u64; mapper.idle_bytes / 8];
    for (page, words) in idle.chunks_exact_mut(WORDS).enumerate() {
        content.fill(page as u64 + 1, words);
    }
    turns(mapper, Duration::from_millis(mapper.settle_millis))?;
    let turns_per_s = turns(mapper, Duration::from_millis(mapper.millis))?;
    let mut expected = [0u64; WORDS];
    for (page, words) in idle.chunks_exact(WORDS).enumerate() {
        content.fill(page as u64 + 1, &mut expected);
        ensure!(words == expected, "page {page} of the idle memory changed");
    }
    Ok(MapperResult { turns_per_s })
}

/// Lets all threads take and give for `time`; turns a second.
fn turns(mapper: &Mapper, time: Duration) -> Result<f64> {
    let (over, start) = (AtomicBool::new(false), Instant::now());
    let turns = std::thread::scope(|scope| {
        let work = || {
            let mut turns = 0u64;
            // At least one, where no CPU was to be had in time.
            loop {
                turn(mapper)?;
                turns += 1;
                if over.load(Relaxed) {
                    return anyhow::Ok(turns);
                }
            }
        };
        let threads: Vec<_> = (0..mapper.threads).map(|_| scope.spawn(work)).collect();
        std::thread::sleep(time);
        over.store(true, Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum::<Result<u64>>()
    })?;
    Ok(turns as f64 / start.elapsed().as_secs_f64())
}

/// Takes memory, touches a page of it and gives it back.
fn turn(mapper: &Mapper) -> Result<()> {
    let plain = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, which is used by this thread only and only until it is given back. Volatile: the touch is the
    // point.
    unsafe {
        let memory = match mapper.by {
            By::Mapping => libc::mmap(std::ptr::null_mut(), mapper.bytes, plain, flags, -1, 0),
            By::Block => libc::malloc(mapper.bytes),
        };
        if memory == libc::MAP_FAILED || memory.is_null() {
            bail!("no memory of {} bytes: {}", mapper.bytes, std::io::Error::last_os_error());
        }
        let word = memory.cast::<u64>();
        word.write_volatile(!0);
        ensure!(word.read_volatile() == !0, "a word of fresh memory did not hold what had just been written");
        match mapper.by {
            By::Mapping => ensure!(
                libc::munmap(memory, mapper.bytes) == 0,
                "munmap failed: {}",
                std::io::Error::last_os_error()
            ),
            By::Block => libc::free(memory),
        }
    }
    Ok(())
}
