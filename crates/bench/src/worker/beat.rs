//! A program with many threads that look at the clock all the time: for how long one of them did not, it was stopped.
//!
//! Each looks again and again for a moment, and sleeps for a moment; what it sleeps too long counts as well.

use super::{answer, request};
use crate::content::{Content, WORDS};
use anyhow::{ensure, Result};
use memfold_sys::PAGE_SIZE;
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
    let pages = beat.bytes / PAGE_SIZE;
    ensure!(pages > 0, "a region of {} bytes has no page", beat.bytes);
    let content = Content::uniform(beat.seed);
    let mut words = vec![0u64; pages * WORDS];
    for (page, words) in words.chunks_exact_mut(WORDS).enumerate() {
        content.fill(page as u64 + 1, words);
    }
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    for _ in 0..beat.threads {
        Builder::new().stack_size(STACK).spawn(|| look(&LONGEST))?;
    }
    answer(&beat.threads)?;
    while let Some(asked) = request::<BeatRequest>()? {
        let right = |place: usize| content.word((place / WORDS) as u64 + 1, place % WORDS);
        answer(&match asked {
            BeatRequest::Longest => LONGEST.swap(0, Relaxed),
            BeatRequest::Wrong => {
                words.iter().enumerate().filter(|&(place, &word)| word != right(place)).count() as u64
            }
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
