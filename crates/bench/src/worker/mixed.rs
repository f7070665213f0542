//! The mixed loop of malloc and free: slots are taken at random; a full one is freed, an empty one gets a block of
//! random size whose first and last byte are written.
//!
//! What it is not: Rust's allocator. The loop calls `malloc` and `free` by their C names, so that the preloaded library,
//! or its absence, decides who answers.
//!
//! Invariants: the slot tables are mapped, not allocated, so all allocators start with equal hands.

use crate::process::Memory;
use anyhow::{ensure, Result};
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use sys::mem;

/// The loop's measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixed {
    /// Slots a thread.
    pub slots: usize,
    /// Threads, each with its own slots.
    pub threads: usize,
    /// Smallest block, bytes.
    pub least_bytes: usize,
    /// Largest block, bytes.
    pub most_bytes: usize,
    /// How long to run, milliseconds, after a fifth of that to warm up.
    pub millis: u64,
    /// What the sizes and slots are drawn from.
    pub seed: u64,
}

/// What the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixedResult {
    /// Calls of malloc or free a second, over all threads.
    pub calls_per_s: f64,
    /// The process's memory at the end of the loop, all slots as they then were.
    pub memory: Memory,
}

/// Calls between two looks at the clock.
const BATCH: u64 = 4096;

pub(super) fn run(mixed: &Mixed) -> Result<MixedResult> {
    ensure!(mixed.slots > 0 && mixed.threads > 0, "the mixed loop needs a slot and a thread");
    ensure!(
        (2..=mixed.most_bytes).contains(&mixed.least_bytes),
        "block sizes must ascend from 2 bytes or more, not from {} to {}",
        mixed.least_bytes,
        mixed.most_bytes
    );
    let (ready, done) = (Barrier::new(mixed.threads + 1), Barrier::new(mixed.threads + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..mixed.threads)
            .map(|number| {
                let (ready, done) = (&ready, &done);
                scope.spawn(move || -> Result<f64> {
                    let slots = Slots::new(mixed, number as u64);
                    ready.wait();
                    let rate = slots.map(|mut slots| {
                        slots.run(Duration::from_millis(mixed.millis / 5));
                        let rate = slots.run(Duration::from_millis(mixed.millis));
                        (rate, slots)
                    });
                    // Nobody's blocks are freed before the memory was looked at.
                    done.wait();
                    done.wait();
                    rate.map(|(rate, _)| rate)
                })
            })
            .collect();
        ready.wait();
        done.wait();
        let memory = Memory::of("self");
        done.wait();
        let mut calls_per_s = 0.0;
        for thread in threads {
            calls_per_s +=
                thread.join().map_err(|_| anyhow::anyhow!("a thread of the mixed loop panicked"))??;
        }
        Ok(MixedResult { calls_per_s, memory: memory? })
    })
}

struct Slots<'a> {
    table: &'a mut [*mut u8],
    state: u64,
    least: u64,
    span: u64,
}

impl Slots<'_> {
    fn new(mixed: &Mixed, number: u64) -> Result<Self> {
        let bytes = mixed.slots * size_of::<*mut u8>();
        let base = mem::map_anonymous(0, bytes.next_multiple_of(sys::PAGE_SIZE), 0)?;
        // SAFETY: a fresh mapping of that length, zeroed (null pointers), unmapped by nobody before `drop`.
        let table = unsafe { std::slice::from_raw_parts_mut(base as *mut *mut u8, mixed.slots) };
        // Xorshift must not start at 0.
        let state = mixed.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        let (least, span) = (mixed.least_bytes as u64, (mixed.most_bytes - mixed.least_bytes + 1) as u64);
        Ok(Slots { table, state, least, span })
    }

    /// Runs for `time`; calls a second.
    fn run(&mut self, time: Duration) -> f64 {
        let start = Instant::now();
        let mut calls = 0;
        while start.elapsed() < time {
            for _ in 0..BATCH {
                self.call();
            }
            calls += BATCH;
        }
        calls as f64 / start.elapsed().as_secs_f64()
    }

    #[inline]
    fn call(&mut self) {
        // Xorshift64 (Marsaglia, "Xorshift RNGs", 2003): three shifts, so that the loop times the allocator.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let place = (((self.state >> 32) * self.table.len() as u64) >> 32) as usize;
        let slot = &mut self.table[place];
        if !slot.is_null() {
            // SAFETY: allocated below, freed once since the slot is emptied here.
            unsafe { libc::free(slot.cast()) };
            *slot = std::ptr::null_mut();
            return;
        }
        let size = (self.least + (((self.state & 0xffff_ffff) * self.span) >> 32)) as usize;
        // SAFETY: `malloc` may be called with any size; the block is written within its length if there is one.
        unsafe {
            let block = libc::malloc(size).cast::<u8>();
            if !block.is_null() {
                block.write_volatile(1);
                block.add(size - 1).write_volatile(1);
            }
            *slot = block;
        }
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        for slot in self.table.iter() {
            // SAFETY: every slot is null or a block that nobody freed. The table itself goes with the process.
            unsafe { libc::free(slot.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_reports_a_rate_for_all_threads_and_refuses_sizes_that_descend() {
        let mixed = Mixed { slots: 100, threads: 2, least_bytes: 16, most_bytes: 1040, millis: 20, seed: 1 };
        let result = run(&mixed).unwrap();
        assert!(result.calls_per_s > 0.0 && result.memory.rss_peak_bytes > 0);
        assert!(run(&Mixed { least_bytes: 2000, ..mixed }).is_err());
        assert!(run(&Mixed { slots: 0, ..mixed }).is_err());
    }
}
