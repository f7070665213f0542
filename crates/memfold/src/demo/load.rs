//! Filling a server, keeping it busy, and reading everything back.

use crate::exit;
use hdrhistogram::Histogram;
use memfold_bench::redis::resp::Client;
use memfold_bench::redis::{self, values};
use memfold_stats::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Requests that are under way at a time.
const PIPELINE: u64 = 16;

/// One key in so many is hot.
pub const HOT_ONE_IN: u64 = 20;

/// Set when the user interrupts the demo.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Where the hot keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Hot {
    /// Every twentieth key: hot values lie among cold ones, page by page.
    Scattered,
    /// The last twentieth: the records that were written last.
    Recent,
}

impl Hot {
    /// The number of a hot record among `records`, at random.
    fn choose(self, rng: &mut Rng, records: u64) -> u64 {
        let hot = (records / HOT_ONE_IN).max(1);
        match self {
            Hot::Scattered => rng.below(hot) * HOT_ONE_IN,
            Hot::Recent => records - hot + rng.below(hot),
        }
    }
}

fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Relaxed) {
        return Err(exit::interrupted());
    }
    Ok(())
}

/// Counts in `done`, until the user interrupts.
fn counting(done: &AtomicU64) -> impl FnMut(u64) -> anyhow::Result<()> + '_ {
    |records| {
        done.fetch_add(records, Relaxed);
        check_interrupted()
    }
}

/// Writes all records. Counts them in `done` on the way. Returns the bytes of the values.
///
/// # Errors
/// The server fails, or the user interrupts.
pub fn fill(client: &mut Client, records: u64, done: &AtomicU64) -> anyhow::Result<u64> {
    redis::fill(client, records, counting(done))
}

/// What one slice of load measured.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Answers per second.
    pub throughput: f64,
    /// From sending a request (with those of its pipeline) to its answer, ns.
    pub latency: Histogram<u64>,
}

/// A histogram of nanoseconds up to a minute, within 0.1 %.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

/// Asks for hot records, [`PIPELINE`] at a time, for the given time.
///
/// # Errors
/// The server fails, or the user interrupts.
pub fn press(
    client: &mut Client,
    rng: &mut Rng,
    hot: Hot,
    records: u64,
    time: Duration,
) -> anyhow::Result<Slice> {
    let mut latency = histogram();
    let (mut answer, mut answers) = (Vec::new(), 0u64);
    let begun = Instant::now();
    while begun.elapsed() < time {
        check_interrupted()?;
        for _ in 0..PIPELINE {
            let key = values::key(hot.choose(rng, records));
            client.queue(&[b"GET", key.as_bytes()]);
        }
        let sent = Instant::now();
        client.flush()?;
        for _ in 0..PIPELINE {
            answer.clear();
            client.answer(&mut answer)?;
            latency.saturating_record(sent.elapsed().as_nanos() as u64);
        }
        answers += PIPELINE;
    }
    Ok(Slice { throughput: answers as f64 / begun.elapsed().as_secs_f64(), latency })
}

/// Reads every record back and compares it with what it must be. Returns how many differ.
///
/// # Errors
/// The server fails, or the user interrupts.
pub fn verify(client: &mut Client, records: u64, done: &AtomicU64) -> anyhow::Result<u64> {
    redis::verify(client, records, counting(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_of_the_records_is_hot_wherever_they_are() {
        let mut rng = Rng::new(1);
        for hot in [Hot::Scattered, Hot::Recent] {
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..10_000 {
                seen.insert(hot.choose(&mut rng, 1000));
            }
            assert_eq!(seen.len(), 50, "{hot:?}");
            assert!(seen.iter().all(|n| *n < 1000));
        }
    }
}
