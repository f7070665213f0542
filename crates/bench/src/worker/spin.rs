//! A program with nothing cold: it reads and writes its whole region at random, all the time.

use super::region::Region;
use anyhow::Result;
use memfold_stats::Rng;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The region and how long to run over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spin {
    /// Size of the region, bytes.
    pub bytes: usize,
    /// How long to run before measuring, milliseconds: the pager, if there is one, has found its stride by then.
    pub settle_millis: u64,
    /// How long to measure, milliseconds.
    pub millis: u64,
    /// What contents and order are made from.
    pub seed: u64,
}

/// What the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpinResult {
    /// Words read and written a second.
    pub touches_per_s: f64,
}

const BATCH: u64 = 4096;

pub(super) fn run(spin: &Spin) -> Result<SpinResult> {
    let mut words = Region::filled(spin.bytes, spin.seed)?.words;
    let mut rng = Rng::new(spin.seed);
    touch(&mut words, &mut rng, Duration::from_millis(spin.settle_millis));
    let touches_per_s = touch(&mut words, &mut rng, Duration::from_millis(spin.millis));
    Ok(SpinResult { touches_per_s })
}

/// Adds to random words for `time`; touches a second.
fn touch(words: &mut [u64], rng: &mut Rng, time: Duration) -> f64 {
    let start = Instant::now();
    let mut touches = 0;
    loop {
        for _ in 0..BATCH {
            let place = rng.below(words.len() as u64) as usize;
            words[place] = words[place].wrapping_add(1);
        }
        touches += BATCH;
        if start.elapsed() >= time {
            break;
        }
    }
    std::hint::black_box(&words);
    touches as f64 / start.elapsed().as_secs_f64()
}
