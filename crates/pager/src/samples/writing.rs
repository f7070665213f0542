//! Writing them: each block with what the pager knows of its pages.
//!
//! Background thread only. It tries the locks of extents, and lets others go on between two pieces.

use super::{Part, BLOCK, MAGIC, MOST_CALLS, PREFIX, STACK};
use crate::config::Setting;
use crate::evict::worker::Worker;
use crate::heat::untouched_since;
use crate::tables::entry::State;
use crate::tables::extent::Extent;
use crate::text::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use memfold_sys::signal::quietly;
use memfold_sys::{file, time, Errno, Result, EXTENT_SIZE, PAGE_SIZE};

/// Words that are gathered before they are written.
const PIECE: usize = 512;

/// A file that words are written to.
struct Writer {
    file: i32,
    words: [u64; PIECE],
    len: usize,
}

impl Writer {
    fn put(&mut self, words: &[u64]) -> Result<()> {
        if self.len + words.len() > PIECE {
            self.write_out()?;
        }
        for (place, word) in self.words[self.len..].iter_mut().zip(words) {
            *place = word.to_le();
        }
        self.len += words.len();
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        // SAFETY: words are bytes.
        let bytes = unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.len * 8) };
        self.len = 0;
        quietly(|| file::write_all(self.file, bytes))
    }
}

impl Worker {
    /// Has so many bytes be between two samples; an error where the host has no allocator.
    pub(crate) fn sample_heap(&self, mean: u64) -> Result<()> {
        match self.engine.host().sampler {
            Some(sampler) if (sampler.sample)(mean) => Ok(()),
            Some(_) => Err(Errno::ENOMEM),
            None if mean == 0 => Ok(()),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Writes what is known of the samples to the file of that number. An error where there is no such file, or nothing is sampled.
    pub(crate) fn write_samples(&mut self, number: u64) -> Result<()> {
        let mut prefix = Line::new();
        let _ = write!(prefix, "{PREFIX}{number}-");
        let engine = self.engine;
        let sampler = engine.host().sampler.ok_or(Errno::EOPNOTSUPP)?;
        if engine.setting(Setting::HeapSample) == 0 {
            return Err(Errno::ENODATA);
        }
        let dir = engine.display.reports().ok_or(Errno::ENOENT)?;
        let file = dir.open_beside(prefix.as_str(), libc::O_WRONLY | libc::O_APPEND)?;
        let mut writer = Writer { file: file.raw(), words: [0; PIECE], len: 0 };
        let (now, cold_age) = (time::now().0, engine.setting(Setting::ColdAge));
        (sampler.each)(&mut |part| {
            self.stay_responsive();
            match part {
                Part::Head(mean, since, missed) => writer.put(&[MAGIC, mean, since, now, missed]),
                Part::Stack(number, calls) => {
                    let calls = &calls[..calls.len().min(MOST_CALLS)];
                    let mut words = [0; 1 + MOST_CALLS];
                    words[0] = STACK | (calls.len() as u64) << 32 | u64::from(number);
                    words[1..].iter_mut().zip(calls).for_each(|(word, call)| *word = *call as u64);
                    writer.put(&words[..1 + calls.len()])
                }
                Part::Block(address, size, stack, born) => {
                    let pages = self.pages_of(address, size, now, cold_age);
                    writer.put(&[
                        BLOCK | u64::from(stack),
                        address as u64,
                        size as u64,
                        u64::from(born),
                        pages.folded,
                        pages.aside,
                        pages.idle,
                    ])
                }
            }
        })?;
        writer.write_out()
    }

    /// What the bytes of a block are.
    fn pages_of(&self, address: usize, size: usize, now: u64, cold_age: u64) -> Pages {
        let (end, mut pages) = (address.saturating_add(size), Pages::default());
        for extent in self.engine.space().existing(address, end) {
            let is_whole = extent.away.load(Relaxed) == 0;
            let untouched = now.saturating_sub(untouched_since(extent, now));
            let known = Known { extent, is_idle: is_whole && untouched >= cold_age };
            let base = extent.base();
            let mut at = address.max(base);
            let stop = end.min(base + EXTENT_SIZE);
            while at < stop {
                let index = (at - base) / PAGE_SIZE;
                let next = stop.min(base + (index + 1) * PAGE_SIZE);
                pages.add(&known, index, (next - at) as u64);
                at = next;
            }
        }
        pages
    }
}

struct Known<'a> {
    extent: &'a Extent,
    /// Whether all of it is in memory, and nothing was seen to be touched for a cold age. Where a part is away, nothing is known of pages that came
    /// since, but of those that did not shrink.
    is_idle: bool,
}

/// Bytes of a block.
#[derive(Default)]
struct Pages {
    folded: u64,
    aside: u64,
    idle: u64,
}

impl Pages {
    fn add(&mut self, known: &Known<'_>, index: usize, bytes: u64) {
        match known.extent.entry(index).state() {
            State::Stored | State::Same => self.folded += bytes,
            State::Aside => self.aside += bytes,
            _ if known.extent.hot.contains(index) => {}
            _ if known.is_idle || known.extent.incompressible.contains(index) => self.idle += bytes,
            _ => {}
        }
    }
}
