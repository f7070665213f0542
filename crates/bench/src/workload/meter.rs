//! The clock of a worker: how long to go on, when the next unit is due, how long each took.
//!
//! Invariants: a unit that is due at a fixed time is timed from then on, so one that had to wait for the unit before it
//! counts its waiting too. Times are kept to three digits, which bounds the number of distinct ones.

use super::ground::Ground;
use super::Workload;
use memfold_stats::{Histogram, Rng};
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One worker's clock, random numbers, and share of the memory.
pub(super) struct Meter<'a> {
    pub(super) ground: &'a Ground,
    pub(super) options: &'a Workload,
    pub(super) pieces: Range<usize>,
    pub(super) rng: Rng,
    /// Whether the workload registers its memory by the library.
    pub(super) registers: bool,
    begin: Instant,
    latencies: Histogram,
    units: u64,
    next_rare: Duration,
    sink: u64,
}

/// What a worker did.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) units: u64,
    pub(super) latencies: Histogram,
}

impl<'a> Meter<'a> {
    /// Starts the clock.
    pub(super) fn new(
        ground: &'a Ground,
        options: &'a Workload,
        pieces: Range<usize>,
        number: usize,
        registers: bool,
    ) -> Meter<'a> {
        let rng = Rng::new(options.seed).fork(number as u64);
        let (begin, latencies) = (Instant::now(), Histogram::default());
        let (units, next_rare, sink) = (0, Duration::ZERO, 0);
        Meter { ground, options, pieces, rng, registers, begin, latencies, units, next_rare, sink }
    }

    /// How many pieces are hot.
    pub(super) fn hot_count(&self) -> usize {
        let count = (self.pieces.len() as f64 * self.options.hot_percent / 100.0) as usize;
        count.clamp(1, self.pieces.len())
    }

    /// The hot pieces of a phase, one after the other.
    pub(super) fn window(&self, phase: usize) -> Vec<usize> {
        let count = self.hot_count();
        let windows = self.pieces.len() / count;
        let first = self.pieces.start + phase % windows.max(1) * count;
        (first..first + count).collect()
    }

    /// Whether there is time left.
    pub(super) fn goes_on(&self) -> bool {
        self.elapsed() < Duration::from_millis(self.options.millis)
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Does one unit, when it is due, and times it.
    pub(super) fn unit<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let mut start = self.elapsed();
        if self.options.rate > 0.0 {
            let due = Duration::from_secs_f64(self.units as f64 / self.options.rate);
            sleep(due.saturating_sub(start));
            start = due;
        }
        let result = body(self);
        let taken = self.elapsed().saturating_sub(start);
        self.latencies.record(three_digits(taken.as_nanos() as u64));
        self.units += 1;
        result
    }

    /// Touches random blocks of a random piece out of `pieces` for each of the unit's touches, computes, and touches
    /// rarely used memory where that is due.
    pub(super) fn touch_among(&mut self, pieces: &[usize]) {
        for _ in 0..self.options.touches {
            let piece = pieces[self.rng.below(pieces.len() as u64) as usize];
            self.ground.touch(piece, &mut self.rng);
        }
        self.compute();
        self.touch_rarely();
    }

    /// Touches a block of any piece, as often as the options want it.
    pub(super) fn touch_rarely(&mut self) {
        if self.options.cold_rate <= 0.0 {
            return;
        }
        while self.next_rare < self.elapsed() {
            let piece = self.pieces.start + self.rng.below(self.pieces.len() as u64) as usize;
            self.ground.touch(piece, &mut self.rng);
            self.next_rare += Duration::from_secs_f64(1.0 / self.options.cold_rate);
        }
    }

    /// The unit's computing.
    pub(super) fn compute(&mut self) {
        let mut state = self.sink | 1;
        for _ in 0..self.options.work {
            state = (state ^ (state >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        self.sink = std::hint::black_box(state);
    }

    /// What was done.
    pub(super) fn finish(self) -> Done {
        Done { units: self.units, latencies: self.latencies }
    }
}

/// Rounds a number down to its first three digits.
fn three_digits(value: u64) -> u64 {
    let digits = value.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    value / unit * unit
}

#[cfg(test)]
mod tests {
    use super::three_digits;

    #[test]
    fn times_keep_three_digits() {
        let rounded = [0, 7, 999, 1234, 987_654].map(three_digits);
        assert_eq!(rounded, [0, 7, 999, 1230, 987_000]);
    }
}
