//! A running program, as a run sees it.

use super::place::Started;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a program did with what stays in use, by its own clock or its client's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hot {
    /// Units of its work.
    pub units: u64,
    /// Time at work, ns: the pauses between bursts are not in it.
    pub busy_ns: u64,
    /// 99th percentile of the time of a unit, ns.
    pub p99_ns: u64,
}

impl Hot {
    /// Units in a second at work.
    pub fn units_per_s(&self) -> f64 {
        self.units as f64 * 1e9 / self.busy_ns.max(1) as f64
    }

    /// Of units that took so long each, ns.
    pub(super) fn of(mut times: Vec<u64>) -> Hot {
        times.sort_unstable();
        let rank = memfold_stats::nearest_rank(times.len() as u64, 0.99).unwrap_or(0) as usize;
        Hot {
            units: times.len() as u64,
            busy_ns: times.iter().sum(),
            p99_ns: rank.checked_sub(1).map_or(0, |last| times[last]),
        }
    }
}

/// A program that keeps a heap.
pub(super) trait Subject {
    /// Its process.
    fn started(&mut self) -> &mut Started;

    /// Builds the heap; returns how many items.
    fn load(&mut self) -> Result<u64>;

    /// Changes one of the items.
    fn spoil(&mut self) -> Result<()>;

    /// Works with a twentieth of the items for so long, in bursts.
    fn hot(&mut self, time: Duration) -> Result<Hot>;

    /// Goes through its whole heap by itself, as its collector or its snapshots do. Returns how long that took; `None` where it has nothing of the kind.
    fn collect(&mut self) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// Reads every item; returns how many are wrong.
    fn verify(&mut self) -> Result<u64>;

    /// Tells it to end.
    fn leave(&mut self) -> Result<()>;
}

/// Time at work, out of so much: a tenth of a CPU at most.
const BURST: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_secs(1);

/// Lets a client work in bursts for so long; `burst` works until a moment and adds the time of each unit, ns.
pub(super) fn bursts(
    time: Duration,
    mut burst: impl FnMut(Instant, &mut Vec<u64>) -> Result<()>,
) -> Result<Hot> {
    let (end, mut times) = (Instant::now() + time, Vec::new());
    loop {
        let began = Instant::now();
        burst((began + BURST).min(end), &mut times)?;
        let next = (began + PERIOD).min(end);
        sleep(next.saturating_duration_since(Instant::now()));
        if Instant::now() >= end {
            return Ok(Hot::of(times));
        }
    }
}
