//! What each workload does in a unit.
//!
//! The first four are named after those of the process-pager prototype, whose experiment memfold repeats; each also keeps
//! memory that it seldom uses, without which there would be nothing to save.

use super::churn;
use super::forks;
use super::meter::Meter;
use super::Kind;
use anyhow::Result;
use std::thread::sleep;
use std::time::Duration;

/// Runs one worker until its time is over.
pub(super) fn run(kind: Kind, meter: &mut Meter<'_>) -> Result<()> {
    match kind {
        Kind::InteractiveBurst => interactive_burst(meter),
        Kind::AnonStreamer => anon_streamer(meter),
        Kind::RandomTouchHeap => random_touch_heap(meter),
        Kind::PhaseShift => phase_shift(meter),
        Kind::ZipfHeap => zipf_heap(meter),
        Kind::MmapChurn => return churn::run(meter),
        Kind::ForkTouchExit => return forks::run(meter),
        Kind::Verify => {}
    }
    Ok(())
}

/// Length of a burst, and of the silence after it.
const BURST: Duration = Duration::from_millis(200);
const SILENCE: Duration = Duration::from_millis(100);

/// Bursts of requests to a small working set, with silence in between.
fn interactive_burst(meter: &mut Meter<'_>) {
    let hot = meter.window(0);
    while meter.goes_on() {
        let end = meter.elapsed() + BURST;
        while meter.elapsed() < end && meter.goes_on() {
            meter.unit(|meter| meter.touch_among(&hot));
        }
        sleep(SILENCE);
    }
}

/// Reads and writes a window from end to end, again and again, and after a phase the next window. A unit is a piece.
fn anon_streamer(meter: &mut Meter<'_>) {
    while meter.goes_on() {
        let phase = phase_of(meter);
        let hot = meter.window(phase);
        'phase: while meter.goes_on() {
            for &piece in &hot {
                meter.unit(|meter| std::hint::black_box(meter.ground.stream(piece)));
                if !meter.goes_on() || phase_of(meter) != phase {
                    break 'phase;
                }
            }
        }
    }
}

/// Touches blocks of the heap at random: mostly of some pieces that lie scattered over it, seldom of any.
fn random_touch_heap(meter: &mut Meter<'_>) {
    let mut hot: Vec<usize> = meter.pieces.clone().collect();
    meter.rng.shuffle(&mut hot);
    hot.truncate(meter.hot_count());
    while meter.goes_on() {
        meter.unit(|meter| meter.touch_among(&hot));
    }
}

/// Touches a window at random, and after a phase another one.
fn phase_shift(meter: &mut Meter<'_>) {
    while meter.goes_on() {
        let phase = phase_of(meter);
        let hot = meter.window(phase);
        while meter.goes_on() && phase_of(meter) == phase {
            meter.unit(|meter| meter.touch_among(&hot));
        }
    }
}

/// Serves requests for pieces of the heap: the k-th most popular piece is asked for in proportion to `k^-skew` (Zipf).
fn zipf_heap(meter: &mut Meter<'_>) {
    let mut pieces: Vec<usize> = meter.pieces.clone().collect();
    meter.rng.shuffle(&mut pieces);
    let mut below = Vec::with_capacity(pieces.len());
    let mut sum = 0.0;
    for rank in 1..=pieces.len() {
        sum += (rank as f64).powf(-meter.options.skew);
        below.push(sum);
    }
    while meter.goes_on() {
        meter.unit(|meter| {
            let draw = meter.rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
            let piece = pieces[below.partition_point(|&b| b <= draw).min(pieces.len() - 1)];
            for _ in 0..meter.options.touches {
                meter.ground.touch(piece, &mut meter.rng);
            }
            meter.compute();
        });
    }
}

/// The number of the phase at hand.
fn phase_of(meter: &Meter<'_>) -> usize {
    (meter.elapsed().as_millis() / u128::from(meter.options.phase_millis.max(1))) as usize
}
