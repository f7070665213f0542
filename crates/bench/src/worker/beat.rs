//! A program with many threads that look at the clock all the time: for how long one of them did not, it was stopped.
//!
//! Each looks again and again for a moment, and sleeps for a moment; what it sleeps too long counts as well.

use super::region::Region;
use super::{answer, request};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{sleep, Builder};
use std::time::{Duration, Instant};

/// What a thread does by turns.
const LOOKS: Duration = Duration::from_micros(50);
const SLEEPS: Duration = Duration::from_millis(5);
/// What a thread's stack takes.
const STACK: usize = 64 << 10;

/// The threads, and memory beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// How many.
    pub threads: usize,
    /// Memory that is held and looked at in the end, bytes.
    pub bytes: usize,
    /// What its contents are made from.
    pub seed: u64,
}

/// What is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeatRequest {
    /// The longest stop of any thread since the last time, ns.
    Longest,
    /// How many words of the memory are wrong.
    Wrong,
}

/// Answers the number of threads when they run, and each request with a number.
pub(super) fn serve(beat: &Beat) -> Result<()> {
    let region = Region::filled(beat.bytes, beat.seed)?;
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    for _ in 0..beat.threads {
        Builder::new().stack_size(STACK).spawn(|| look(&LONGEST))?;
    }
    answer(&beat.threads)?;
    while let Some(asked) = request::<BeatRequest>()? {
        answer(&match asked {
            BeatRequest::Longest => LONGEST.swap(0, Relaxed),
            BeatRequest::Wrong => region.wrong_words() as u64,
        })?;
    }
    Ok(())
}

fn look(longest: &AtomicU64) -> ! {
    let mut last = Instant::now();
    loop {
        let began = last;
        while last.duration_since(began) < LOOKS {
            let now = Instant::now();
            longest.fetch_max(now.duration_since(last).as_nanos() as u64, Relaxed);
            last = now;
        }
        sleep(SLEEPS);
        let now = Instant::now();
        longest.fetch_max(now.duration_since(last).saturating_sub(SLEEPS).as_nanos() as u64, Relaxed);
        last = now;
    }
}
