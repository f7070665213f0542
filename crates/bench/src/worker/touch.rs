//! Timing touches to pages that were evicted.
//!
//! What it is: a region of known contents, mapped with `mmap` in pages of 4 KiB (no huge pages, in any arm), whose
//! pages are read one word each, each read timed with the monotonic clock.
//!
//! What it is not: the evictor. The experiment has the pages evicted, by the pager or by the kernel; the worker's part
//! is `MADV_PAGEOUT` where the kernel is to do it, and to see in `/proc/self/pagemap` what really went.
//!
//! Invariants: in random order no page enters the samples that the page map shows present just before its touch. In
//! sequential order every page is touched, since reading ahead is part of what is measured; the round counts those
//! that were present before it began. The time that the clock itself takes is measured first and subtracted.

use super::mapping::{Mapping, Presence};
use super::{answer, pin, request};
use crate::content::{Content, WORDS};
use anyhow::Result;
use memfold_stats::{Histogram, Rng};
use memfold_sys::{time, PAGE_SIZE};
use serde::{Deserialize, Serialize};

/// The region that a touching worker keeps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Touch {
    /// Its size, bytes; rounded down to whole pages.
    pub bytes: usize,
    /// What its contents are made from.
    pub seed: u64,
    /// The CPU that the touching thread is bound to, if any.
    pub pin: Option<usize>,
}

/// What the experiment may ask of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchRequest {
    /// Have the kernel swap the region out. Answered by [`Presence`].
    PageOut,
    /// Look where the pages are. Answered by [`Presence`].
    Look,
    /// Touch the region's pages. Answered by [`TouchResult`].
    Touch(Round),
}

/// One pass over the region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// In which order.
    pub order: Order,
    /// What a random order is made from.
    pub seed: u64,
    /// Whether to tell of each touch when it was, and where.
    pub traced: bool,
}

/// One touch, where that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The address of the page.
    pub page: u64,
    /// When it began and ended by `CLOCK_MONOTONIC`, ns.
    pub began: u64,
    /// See `began`.
    pub ended: u64,
    /// The CPU that the thread ran on before and after it.
    pub cpus: (i32, i32),
}

/// The order in which pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// A random permutation: neighbours in space are strangers in time, so nothing can be read ahead.
    Random,
    /// Ascending addresses.
    Sequential,
}

/// Where the worker's region is, its first answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Its pages.
    pub pages: usize,
    /// What reading the clock twice takes, ns, subtracted from every sample.
    pub clock_overhead_ns: u64,
}

/// What a round found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TouchResult {
    /// Where the pages were before the round.
    pub before: Presence,
    /// Time of each touch that entered the samples, ns.
    pub touch_ns: Histogram,
    /// Pages left out because they were present just before their touch (random order only).
    pub skipped: usize,
    /// Words that did not hold what was written. Anything but 0 is a defect.
    pub wrong_words: u64,
    /// Each of the touches that entered the samples, in order, where that was asked for.
    pub traced: Vec<Traced>,
}

struct Memory {
    mapping: Mapping,
    content: Content,
    clock_overhead_ns: u64,
}

/// Maps and fills the region, then serves requests until the experiment closes the pipe.
pub(super) fn serve(touch: &Touch) -> Result<()> {
    if let Some(cpu) = touch.pin {
        pin(cpu)?;
    }
    let memory = Memory::new(touch)?;
    answer(&Region { pages: memory.mapping.pages(), clock_overhead_ns: memory.clock_overhead_ns })?;
    while let Some(next) = request()? {
        match next {
            TouchRequest::PageOut => answer(&memory.mapping.page_out()?)?,
            TouchRequest::Look => answer(&memory.mapping.look()?)?,
            TouchRequest::Touch(round) => answer(&memory.touch(round)?)?,
        }
    }
    Ok(())
}

impl Memory {
    fn new(touch: &Touch) -> Result<Memory> {
        let mapping = Mapping::new(touch.bytes / PAGE_SIZE)?;
        let content = Content::uniform(touch.seed);
        for page in 0..mapping.pages() {
            // SAFETY: within the mapping, which nobody else uses.
            let words = unsafe { std::slice::from_raw_parts_mut(mapping.address(page) as *mut u64, WORDS) };
            content.fill(page as u64 + 1, words);
        }
        Ok(Memory { mapping, content, clock_overhead_ns: clock_overhead() })
    }

    fn read(&self, page: usize, word: usize) -> u64 {
        // SAFETY: within the mapping, aligned, initialised by `new`. Volatile: the read is what is being timed.
        unsafe { std::ptr::read_volatile((self.mapping.address(page) as *const u64).add(word)) }
    }

    fn touch(&self, round: Round) -> Result<TouchResult> {
        let mut order: Vec<u32> = (0..self.mapping.pages() as u32).collect();
        if round.order == Order::Random {
            Rng::new(round.seed).shuffle(&mut order);
        }
        // Written to now, so that no sample pays for the first touch of the buffer or for its own eviction.
        let mut samples = vec![u64::MAX; self.mapping.pages()];
        let before = self.mapping.look()?;
        let mut traced = Vec::with_capacity(if round.traced { self.mapping.pages() } else { 0 });
        let (mut taken, mut skipped, mut wrong_words) = (0, 0, 0);
        for &page in &order {
            let page = page as usize;
            if round.order == Order::Random && self.mapping.is_present(page)? {
                skipped += 1;
                continue;
            }
            let word = page % WORDS;
            let from = round.traced.then(current_cpu);
            let began = time::now();
            let found = self.read(page, word);
            let ended = time::now();
            samples[taken] = ended.since(began).0;
            taken += 1;
            if let Some(from) = from {
                let (page, cpus) = (self.mapping.address(page) as u64, (from, current_cpu()));
                traced.push(Traced { page, began: began.0, ended: ended.0, cpus });
            }
            wrong_words += u64::from(found != self.content.word(page as u64 + 1, word));
        }
        let mut touch_ns = Histogram::default();
        samples[..taken].iter().for_each(|&ns| touch_ns.record(ns.saturating_sub(self.clock_overhead_ns)));
        wrong_words += self.count_wrong_words();
        Ok(TouchResult { before, touch_ns, skipped, wrong_words, traced })
    }

    fn count_wrong_words(&self) -> u64 {
        let wrong = |page: usize| {
            let tag = page as u64 + 1;
            (0..WORDS).filter(|&word| self.read(page, word) != self.content.word(tag, word)).count() as u64
        };
        (0..self.mapping.pages()).map(wrong).sum()
    }
}

/// The CPU that the calling thread runs on.
fn current_cpu() -> i32 {
    // SAFETY: no memory involved.
    unsafe { libc::sched_getcpu() }
}

/// The median time between two readings of the clock with nothing between them, ns.
fn clock_overhead() -> u64 {
    let mut times = Histogram::default();
    for _ in 0..20_000 {
        let began = time::now();
        times.record(time::now().since(began).0);
    }
    times.quantile(0.5).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::mem;

    fn memory(pages: usize) -> Memory {
        Memory::new(&Touch { bytes: pages * PAGE_SIZE, seed: 5, pin: None }).unwrap()
    }

    #[test]
    fn a_page_that_is_present_never_enters_the_samples_of_a_random_round() {
        let memory = memory(64);
        assert_eq!(memory.mapping.look().unwrap(), Presence { present: 64, swapped: 0, away: 0 });
        let result = memory.touch(Round { order: Order::Random, seed: 1, traced: false }).unwrap();
        assert_eq!((result.touch_ns.count(), result.skipped), (0, 64));
    }

    #[test]
    fn a_dropped_page_is_touched_counted_as_away_and_found_wrong() {
        let memory = memory(64);
        // SAFETY: the test's own memory; losing it is the point.
        unsafe { mem::madvise(memory.mapping.address(7), PAGE_SIZE, libc::MADV_DONTNEED).unwrap() };
        let result = memory.touch(Round { order: Order::Random, seed: 1, traced: false }).unwrap();
        assert_eq!(result.before, Presence { present: 63, swapped: 0, away: 1 });
        assert_eq!((result.touch_ns.count(), result.skipped), (1, 63));
        assert!(result.wrong_words >= (WORDS / 2) as u64, "{} words", result.wrong_words);
    }

    #[test]
    fn a_sequential_round_touches_every_page() {
        let result = memory(64).touch(Round { order: Order::Sequential, seed: 1, traced: false }).unwrap();
        assert_eq!((result.touch_ns.count(), result.skipped, result.wrong_words), (64, 0, 0));
    }
}
