//! The threads of a loop: they run a phase when told to, and stand still between phases.
//!
//! Invariants: between two phases no thread calls the allocator; the clock is read twice a batch, around one step, which
//! is the sample.

use super::actor::Actor;
use super::{cross, life, slots, Ask, Loop, Pattern, Phase};
use anyhow::{bail, Result};
use memfold_pager::control::{Histogram as Buckets, BUCKETS};
use memfold_stats::Histogram;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a thread did in a phase.
struct Done {
    operations: u64,
    elapsed: Duration,
    samples: [u32; BUCKETS],
}

/// Where threads wait for their orders.
struct Stage {
    /// What to do next; `None` to end.
    ask: Mutex<Option<Ask>>,
    /// Passed by all when a phase begins, and again when it has ended.
    gate: Barrier,
    done: Vec<Mutex<Option<Done>>>,
    /// What reading the clock twice takes, ns.
    clock_ns: u64,
}

/// Starts the threads of `job`; `body` has them run phases, and when it returns they end.
pub(super) fn stage(
    job: &Loop,
    body: impl FnOnce(&mut dyn FnMut(Ask) -> Result<Phase>) -> Result<()>,
) -> Result<()> {
    let stage = Stage {
        ask: Mutex::new(None),
        gate: Barrier::new(job.threads + 1),
        done: (0..job.threads).map(|_| Mutex::new(None)).collect(),
        clock_ns: clock_overhead(),
    };
    let (exchange, rings, gifts) = match job.pattern {
        Pattern::Larson => (Some(cross::Exchange::new(job.threads)), None, None),
        Pattern::Xmalloc => (Some(cross::Exchange::new(4 * job.threads)), None, None),
        Pattern::ProducerConsumer => (None, Some(cross::Rings::new(job.threads / 2)), None),
        Pattern::FalseSharing => (None, None, Some(life::gifts(job))),
        Pattern::StringMap => bail!("string_map is a program of its own"),
        _ => (None, None, None),
    };
    std::thread::scope(|scope| {
        for number in 0..job.threads {
            let (stage, exchange, rings) = (&stage, exchange.as_ref(), rings.as_ref());
            let gift = gifts.as_ref().map_or(0, |gifts| gifts[number]);
            scope.spawn(move || match (job.pattern, exchange, rings) {
                (Pattern::Mixed, ..) => stage.act(number, slots::Slots::<slots::Plain>::new(job, number)),
                (Pattern::Calloc, ..) => stage.act(number, slots::Slots::<slots::Zeroed>::new(job, number)),
                (Pattern::Aligned, ..) => stage.act(number, slots::Slots::<slots::Aligned>::new(job, number)),
                (Pattern::Realloc, ..) => stage.act(number, slots::Resizing::new(job, number)),
                (Pattern::Larson, Some(exchange), _) => {
                    stage.act(number, cross::Larson::new(job, number, exchange));
                }
                (Pattern::Xmalloc, Some(exchange), _) => {
                    stage.act(number, cross::Xmalloc::new(job, number, exchange));
                }
                (Pattern::ProducerConsumer, _, Some(rings)) if number % 2 == 0 => {
                    stage.act(number, cross::Producer::new(job, number, rings));
                }
                (Pattern::ProducerConsumer, _, Some(rings)) => {
                    stage.act(number, cross::Consumer::new(number, rings));
                }
                (Pattern::Fragmentation, ..) => stage.act(number, life::Aging::new(job, number)),
                (Pattern::FalseSharing, ..) => stage.act(number, life::Sharing::new(job, gift)),
                (Pattern::ThreadChurn, ..) => stage.act(number, life::Churn::new(job, number)),
                _ => unreachable!("the pattern's shared part was made above"),
            });
        }
        let outcome = body(&mut |ask| Ok(stage.phase(ask)));
        stage.order(None);
        stage.gate.wait();
        outcome
    })
}

impl Stage {
    fn order(&self, ask: Option<Ask>) {
        *self.ask.lock().unwrap_or_else(PoisonError::into_inner) = ask;
    }

    /// Has all threads run a phase and adds up what they did.
    fn phase(&self, ask: Ask) -> Phase {
        self.order(Some(ask));
        self.gate.wait();
        self.gate.wait();
        let mut phase =
            Phase { operations: 0, elapsed_ns: 0, calls_per_s: 0.0, step_ns: Histogram::default() };
        let mut samples = [0u64; BUCKETS];
        for done in &self.done {
            let Some(done) = done.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
            phase.operations += done.operations;
            phase.elapsed_ns = phase.elapsed_ns.max(done.elapsed.as_nanos() as u64);
            phase.calls_per_s += done.operations as f64 / done.elapsed.as_secs_f64();
            samples.iter_mut().zip(done.samples).for_each(|(sum, count)| *sum += u64::from(count));
        }
        let seen = samples.into_iter().enumerate().filter(|(_, count)| *count > 0);
        phase.step_ns =
            seen.map(|(bucket, count)| (Buckets::value_of(bucket), count)).collect::<Vec<_>>().into();
        phase
    }

    /// The body of thread `number`.
    fn act<A: Actor>(&self, number: usize, mut actor: A) {
        loop {
            self.gate.wait();
            let ask = *self.ask.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(ask) = ask else { return };
            let share = ask.operations.div_ceil(self.done.len() as u64);
            let done = drive(&mut actor, ask, share, self.clock_ns);
            *self.done[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            self.gate.wait();
        }
    }
}

/// Of a number of steps that is given, at least about so many are looked at.
const SAMPLED: u64 = 256;

/// Runs one phase of one thread, which is to make so many calls of the allocator, or as many as it can if none are named.
fn drive<A: Actor>(actor: &mut A, ask: Ask, share: u64, clock_ns: u64) -> Done {
    let limit = if ask.millis == 0 { Duration::MAX } else { Duration::from_millis(ask.millis) };
    let mut left = if ask.steps == 0 { u64::MAX } else { ask.steps };
    let share = if share == 0 { u64::MAX } else { share };
    let mut samples = [0; BUCKETS];
    let mut operations = 0;
    // A run of few steps has enough of them looked at.
    let most = if ask.steps == 0 { A::BATCH } else { A::BATCH.min((ask.steps / SAMPLED).max(1)) };
    let start = Instant::now();
    loop {
        let batch = most.min(left - 1).min((share - operations - 1) / A::MOST_CALLS);
        for _ in 0..batch {
            operations += actor.step();
        }
        let is_last = share - operations == 1;
        let before = Instant::now();
        let calls = if is_last { actor.last() } else { actor.step() };
        let after = Instant::now();
        operations += calls;
        // One that waits for another thread and calls nothing tells of no allocator.
        if calls > 0 {
            let ns = (after - before).as_nanos() as u64;
            samples[Buckets::bucket_of(ns.saturating_sub(clock_ns))] += 1;
        }
        left -= batch + 1;
        if left == 0 || operations >= share || after - start >= limit {
            return Done { operations, elapsed: after - start, samples };
        }
    }
}

/// The least time between two readings of the clock with nothing between them, ns.
fn clock_overhead() -> u64 {
    let once = |_| {
        let start = Instant::now();
        start.elapsed().as_nanos() as u64
    };
    (0..1000).map(once).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Written;

    fn small(pattern: Pattern) -> Loop {
        Loop {
            pattern,
            threads: 2,
            slots: 50,
            least_bytes: 16,
            most_bytes: 3000,
            written: Written::Pages,
            seed: 1,
        }
    }

    #[test]
    fn every_pattern_calls_the_allocator_in_each_of_its_phases_and_samples_steps() {
        for pattern in Pattern::ALL.into_iter().filter(|p| *p != Pattern::StringMap) {
            let name = pattern.name();
            stage(&small(pattern), |go_on| {
                let asks = [Ask { millis: 10, ..Ask::default() }, Ask { steps: 3000, ..Ask::default() }];
                for ask in asks {
                    let ask = if pattern == Pattern::ThreadChurn { Ask { steps: 6, ..ask } } else { ask };
                    let phase = go_on(ask)?;
                    assert!(phase.operations > 0 && phase.calls_per_s > 0.0, "{name}: {phase:?}");
                    assert!(phase.step_ns.count() > 0, "{name}: {phase:?}");
                }
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn a_phase_of_so_many_steps_makes_exactly_so_many_calls() {
        let job = Loop { threads: 1, ..small(Pattern::Mixed) };
        let mut seen = Vec::new();
        let asks = [1, 1025, 5000].map(|steps| Ask { steps, ..Ask::default() });
        stage(&job, |go_on| {
            asks.iter().try_for_each(|&ask| go_on(ask).map(|phase| seen.push(phase.operations)))
        })
        .unwrap();
        assert_eq!(seen, [1, 1025, 5000]);
    }

    #[test]
    fn a_phase_of_so_many_calls_makes_them_in_every_pattern_to_the_end_of_a_step() {
        for pattern in Pattern::ALL.into_iter().filter(|p| *p != Pattern::StringMap) {
            let name = pattern.name();
            // Of a pair each thread makes as many as the other, or one of them would wait for ever.
            for operations in [1, 7, 5000, 100_001] {
                let share = u64::div_ceil(operations, 2);
                let most = match pattern {
                    Pattern::FalseSharing => 1,
                    // The life of a thread, and the blocks that it leaves.
                    Pattern::ThreadChurn => 550,
                    _ => 0,
                };
                stage(&small(pattern), |go_on| {
                    let phase = go_on(Ask { operations, ..Ask::default() })?;
                    let expected = 2 * share..=2 * (share + most);
                    assert!(expected.contains(&phase.operations), "{name}: {operations} became {phase:?}");
                    assert!(phase.elapsed_ns > 0, "{name}: {phase:?}");
                    Ok(())
                })
                .unwrap();
            }
        }
    }

    #[test]
    fn measures_that_make_no_sense_are_refused() {
        let job = small(Pattern::Mixed);
        for bad in [
            Loop { least_bytes: 4000, ..job },
            Loop { slots: 0, ..job },
            Loop { threads: 0, ..job },
            Loop { least_bytes: 1, ..job },
            Loop { pattern: Pattern::Realloc, least_bytes: 8, ..job },
            Loop { pattern: Pattern::ProducerConsumer, threads: 3, ..job },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(job.check().is_ok());
        assert!("mixd".parse::<Pattern>().unwrap_err().contains("larson"));
    }
}
