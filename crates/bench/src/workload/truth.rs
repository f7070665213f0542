//! What is cold, by the workload's own account, sampled while it runs; and, where the kernel is to swap, the thread that
//! asks it to.
//!
//! What it is not: an access source. The workload notes its touches, so nothing has to be found out. A kernel that swaps
//! by this rule is told of every cold piece at no cost: the best that swap could do.

use super::ground::Ground;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

/// What was cold at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cold {
    /// The moment, ns of `CLOCK_MONOTONIC`, which all processes have in common.
    pub at_ns: u64,
    /// Bytes that had not been touched for the cold age.
    pub bytes: u64,
}

/// What the samples came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Truth {
    /// Mean of the bytes that had not been touched for the cold age.
    pub cold_bytes_mean: f64,
    /// The bytes each time that they changed.
    pub cold: Vec<Cold>,
    /// CPU time of the sampling thread, ns, the kernel's work on swapping out among it.
    pub cpu_ns: u64,
}

/// Samples until `stop`, eight times in each cold age. Pieces are paged out when they become cold, if `page_out` says so.
pub(super) fn watch(ground: &Ground, cold_age: Duration, page_out: bool, stop: &AtomicBool) -> Truth {
    let pause = (cold_age / 8).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let cold_ms = cold_age.as_millis() as u32;
    let sizes: Vec<usize> = (0..ground.pieces()).map(|piece| ground.bytes_of(piece)).collect();
    let mut out: Vec<Option<u32>> = vec![None; sizes.len()];
    let (mut sum, mut samples, mut changes) = (0.0, 0u32, Vec::<Cold>::new());
    while !stop.load(Relaxed) {
        sleep(pause);
        let now = ground.now_ms();
        let mut cold = 0;
        for (piece, size) in sizes.iter().enumerate() {
            let touched = ground.touched_ms(piece);
            if now.saturating_sub(touched) < cold_ms {
                continue;
            }
            cold += size;
            if page_out && out[piece] != Some(touched) {
                ground.page_out(piece);
                out[piece] = Some(touched);
            }
        }
        sum += cold as f64;
        samples += 1;
        if changes.last().is_none_or(|last| last.bytes != cold as u64) {
            changes.push(Cold { at_ns: memfold_sys::time::now().0, bytes: cold as u64 });
        }
    }
    let cold_bytes_mean = sum / f64::from(samples.max(1));
    Truth { cold_bytes_mean, cold: changes, cpu_ns: memfold_sys::time::thread_cpu().0 }
}
