//! Bytes by call stack, from sampled blocks.
//!
//! A block of s bytes is sampled with the chance 1 − e^(−s/m), where m bytes lie between two samples in the mean. So each stands for the
//! inverse of that many blocks.

use crate::frame::Frame;
use crate::names::Names;
use anyhow::Context;
use memfold_pager::samples::Record;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// What a profile can be measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Bytes of live blocks.
    Live,
    /// Of those the ones that nobody touches: folded, set aside, or in memory and not touched for a cold age.
    Cold,
    /// Of those the ones that are folded.
    Folded,
}

/// What was found of blocks, each standing for those that were not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bytes {
    /// How many blocks.
    pub blocks: f64,
    /// Their bytes.
    #[serde(rename = "live_bytes")]
    pub live: f64,
    /// See [`By::Cold`].
    #[serde(rename = "cold_bytes")]
    pub cold: f64,
    /// See [`By::Folded`].
    #[serde(rename = "folded_bytes")]
    pub folded: f64,
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.blocks += other.blocks;
        self.live += other.live;
        self.cold += other.cold;
        self.folded += other.folded;
    }
}

impl Bytes {
    /// One of them.
    pub fn by(&self, by: By) -> f64 {
        match by {
            By::Live => self.live,
            By::Cold => self.cold,
            By::Folded => self.folded,
        }
    }

    /// The part of the live bytes that is cold, from 0 to 1.
    pub fn coldness(&self) -> f64 {
        if self.live > 0.0 {
            self.cold / self.live
        } else {
            0.0
        }
    }
}

/// What one call stack holds.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Its calls, innermost first, with what was inlined into each.
    pub calls: Vec<Vec<Frame>>,
    /// Return addresses, one for each call.
    pub addresses: Vec<u64>,
    /// What it holds.
    pub bytes: Bytes,
}

impl Stack {
    /// All frames, innermost first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &Frame> {
        self.calls.iter().flatten()
    }
}

/// A profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Bytes between two samples in the mean.
    pub mean: u64,
    /// For how long was sampled, ns.
    pub sampled_ns: u64,
    /// Samples that are live.
    pub samples: usize,
    /// Blocks that should have been sampled and were not, as the tables were full.
    pub missed: u64,
    /// Stacks that hold something, those with the most live bytes first.
    pub stacks: Vec<Stack>,
}

impl Profile {
    /// From what a process wrote.
    ///
    /// # Errors
    /// It is nothing of the kind, as where another version of the library writes.
    pub fn read(bytes: &[u8], names: &mut Names) -> anyhow::Result<Profile> {
        let records = Record::all(bytes).context("what the process wrote is no list of samples")?;
        let mut profile = Profile { mean: 1, sampled_ns: 0, samples: 0, missed: 0, stacks: Vec::new() };
        let mut calls: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut held: BTreeMap<u32, Bytes> = BTreeMap::new();
        for record in records {
            match record {
                Record::Head { mean, since_ns, now_ns, missed } => {
                    profile.mean = mean.max(1);
                    profile.sampled_ns = now_ns.saturating_sub(since_ns);
                    profile.missed = missed;
                }
                Record::Stack { number, calls: found } => {
                    calls.insert(number, found);
                }
                Record::Block { size, stack, folded, aside, idle, .. } => {
                    profile.samples += 1;
                    *held.entry(stack).or_default() += stands_for(profile.mean, size, folded, aside, idle);
                }
            }
        }
        for (number, bytes) in held {
            // A stack may have been entered after the stacks were written.
            let addresses = calls.remove(&number).unwrap_or_default();
            let calls = match addresses[..] {
                [] => vec![vec![Frame::unknown("[stack not known]")]],
                _ => addresses.iter().map(|address| names.of_call(*address)).collect(),
            };
            profile.stacks.push(Stack { calls, addresses, bytes });
        }
        profile.stacks.sort_by(|a, b| b.bytes.live.total_cmp(&a.bytes.live));
        Ok(profile)
    }

    /// All stacks together.
    pub fn sum(&self) -> Bytes {
        let mut sum = Bytes::default();
        self.stacks.iter().for_each(|stack| sum += stack.bytes);
        sum
    }

    /// What is held by the innermost `depth` functions, by their names: the most of `by` first.
    pub fn places(&self, depth: usize, by: By) -> Vec<(Vec<String>, Bytes)> {
        let mut places: BTreeMap<Vec<String>, Bytes> = BTreeMap::new();
        for stack in &self.stacks {
            let names = stack.frames().take(depth).map(|frame| frame.function.clone()).collect();
            *places.entry(names).or_default() += stack.bytes;
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_by(|a, b| b.1.by(by).total_cmp(&a.1.by(by)).then(b.1.live.total_cmp(&a.1.live)));
        places
    }
}

/// What a sampled block stands for.
fn stands_for(mean: u64, size: u64, folded: u64, aside: u64, idle: u64) -> Bytes {
    if size == 0 {
        return Bytes::default();
    }
    let blocks = 1.0 / -(-(size as f64) / mean as f64).exp_m1();
    // Another user's process may say anything.
    let folded = folded.min(size);
    let cold = folded.saturating_add(aside).saturating_add(idle).min(size);
    let all = |bytes: u64| bytes as f64 * blocks;
    Bytes { blocks, live: all(size), cold: all(cold), folded: all(folded) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A profile of that many bytes live, cold and folded by stack; names innermost first.
    pub(crate) fn profile(stacks: &[(&[&str], [f64; 3])]) -> Profile {
        let stacks = stacks.iter().enumerate().map(|(number, (names, [live, cold, folded]))| Stack {
            calls: names.iter().map(|name| vec![Frame::unknown(name)]).collect(),
            addresses: (0..names.len()).map(|at| 0x1000 * number as u64 + at as u64 + 1).collect(),
            bytes: Bytes { blocks: 1.0, live: *live, cold: *cold, folded: *folded },
        });
        Profile { mean: 1024, sampled_ns: 5, samples: 2, missed: 0, stacks: stacks.collect() }
    }

    #[test]
    fn a_sample_stands_for_as_many_as_its_chance_says() {
        let small = stands_for(1 << 20, 64, 64, 0, 0);
        assert!((small.live / (1 << 20) as f64 - 1.0).abs() < 0.001, "{small:?}");
        assert!((small.blocks / 16384.0 - 1.0).abs() < 0.001 && small.folded == small.live);
        let large = stands_for(4096, 1 << 20, 1 << 10, 2 << 10, 4 << 10);
        assert!((large.blocks - 1.0).abs() < 1e-9);
        assert_eq!((large.cold.round(), large.folded.round()), (7168.0, 1024.0));
        assert_eq!(stands_for(4096, 0, 9, 9, 9), Bytes::default());
        let nonsense = stands_for(1, 100, u64::MAX, u64::MAX, u64::MAX);
        assert_eq!((nonsense.cold, nonsense.folded), (nonsense.live, nonsense.live));
    }

    #[test]
    fn stacks_are_summed_by_their_innermost_functions() {
        let profile = profile(&[
            (&["malloc_it", "set", "main"], [100.0, 10.0, 0.0]),
            (&["malloc_it", "set", "thread"], [50.0, 50.0, 50.0]),
            (&["malloc_it", "load", "main"], [120.0, 5.0, 0.0]),
        ]);
        let places = profile.places(2, By::Live);
        let named = |place: usize| (places[place].0.join(" "), places[place].1.live, places[place].1.cold);
        assert_eq!(named(0), ("malloc_it set".into(), 150.0, 60.0));
        assert_eq!(named(1), ("malloc_it load".into(), 120.0, 5.0));
        assert_eq!(profile.places(1, By::Cold)[0].1.cold, 65.0);
        assert_eq!(profile.sum().live, 270.0);
    }
}
