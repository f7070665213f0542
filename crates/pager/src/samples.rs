//! Sampled blocks of the host's allocator, and what the pager knows of their pages, for a profile of the heap: who holds the memory that
//! nobody touches.
//!
//! They go to a file that who asks has made beside the control page, named as that with [`PREFIX`] and the number of the request in front, as
//! records of words of eight bytes, little end first ([`Record`]). So a program that nobody looks at spends nothing on it.
//!
//! What it is not: the sampling, which is the allocator's, nor names of functions.
//!
//! Background thread only. It tries the locks of extents, and lets others go on between two pieces.

use alloc::vec::Vec;
use crate::config::Setting;
use crate::evict::worker::Worker;
use crate::heat::untouched_since;
use crate::tables::entry::State;
use crate::tables::extent::Extent;
use crate::text::Line;
use core::fmt::Write;
use memfold_sys::signal::quietly;
use memfold_sys::{file, time, Errno, Result, EXTENT_SIZE, PAGE_SIZE};

/// What the name of the file begins with.
pub const PREFIX: &str = "heap-";

/// The first word of the file: the bytes `memheap` and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memheap\x01");

/// Most calls of a stack.
pub const MOST_CALLS: usize = 128;

/// The allocator of a host, as far as it samples.
#[derive(Debug)]
pub struct Sampler {
    /// From now on so many bytes are between two samples in the mean; 0 for none. False if there is no memory for it.
    pub sample: fn(u64) -> bool,
    /// Shows what is known of all samples together, then every stack, then every live sample. Ends where showing fails.
    pub each: fn(&mut dyn FnMut(Part<'_>) -> Result<()>) -> Result<()>,
}

/// What an allocator says of its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part<'a> {
    /// All together: bytes between two in the mean, when sampling began (ns of `CLOCK_MONOTONIC`), and how many blocks were missed for want of room.
    Head(u64, u64, u64),
    /// A stack: its number, and return addresses, innermost first.
    Stack(u32, &'a [usize]),
    /// A live block: its address, its length, the number of its stack (0 for one that is not known), and when it was allocated, s.
    Block(usize, usize, u32, u32),
}

/// A record of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first: [`MAGIC`], then [`Part::Head`] and when the file was written, ns of `CLOCK_MONOTONIC`.
    Head {
        /// Bytes between two samples in the mean.
        mean: u64,
        /// When sampling began.
        since_ns: u64,
        /// When this was written.
        now_ns: u64,
        /// Blocks that should have been sampled and were not.
        missed: u64,
    },
    /// A stack.
    Stack {
        /// Its number.
        number: u32,
        /// Return addresses, innermost first.
        calls: Vec<u64>,
    },
    /// A live block.
    Block {
        /// Its address.
        address: u64,
        /// Its length.
        size: u64,
        /// The number of its stack; 0 for one that is not known.
        stack: u32,
        /// When it was allocated, in seconds of `CLOCK_MONOTONIC`.
        born: u32,
        /// Of its bytes those that are folded.
        folded: u64,
        /// Those that are set aside.
        aside: u64,
        /// Those in memory that were not touched for a cold age, as far as the pager knows.
        idle: u64,
    },
}

const STACK: u64 = 1 << 56;
const BLOCK: u64 = 2 << 56;

impl Record {
    /// The records in a file's bytes, up to the first that is none. `None` if it does not begin as such a file does.
    pub fn all(bytes: &[u8]) -> Option<Vec<Record>> {
        let mut words = bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)));
        if words.next()? != MAGIC {
            return None;
        }
        let head = Record::Head {
            mean: words.next()?,
            since_ns: words.next()?,
            now_ns: words.next()?,
            missed: words.next()?,
        };
        let mut records = alloc::vec![head];
        records.extend(core::iter::from_fn(|| Record::next(&mut words)));
        Some(records)
    }

    fn next(words: &mut impl Iterator<Item = u64>) -> Option<Record> {
        let head = words.next()?;
        let number = head as u32;
        match head >> 56 << 56 {
            STACK => {
                let len = (head >> 32 & 0xFFFF) as usize;
                let calls: Vec<u64> = words.take(len.min(MOST_CALLS)).collect();
                (calls.len() == len).then_some(Record::Stack { number, calls })
            }
            BLOCK => {
                let mut next = || words.next();
                let (address, size, born) = (next()?, next()?, next()? as u32);
                let (folded, aside, idle) = (next()?, next()?, next()?);
                Some(Record::Block { address, size, stack: number, born, folded, aside, idle })
            }
            _ => None,
        }
    }
}

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
            let known = Known {
                extent,
                is_idle: now.saturating_sub(untouched_since(extent, now)) >= cold_age,
            };
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
    /// Whether nothing of it was seen to be touched for a cold age.
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
            _ if known.is_idle && !known.extent.hot.load().contains(index) => self.idle += bytes,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_as_they_were_written_and_what_is_cut_short_is_none() {
        let words = [
            MAGIC,
            512 << 10,
            7,
            8,
            9,
            STACK | 2 << 32 | 17,
            0x1000,
            0x2000,
            BLOCK | 17,
            0x7f00_0000_1000,
            4096,
            33,
            4000,
            90,
            6,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = [
            Record::Head { mean: 512 << 10, since_ns: 7, now_ns: 8, missed: 9 },
            Record::Stack { number: 17, calls: alloc::vec![0x1000, 0x2000] },
            Record::Block {
                address: 0x7f00_0000_1000,
                size: 4096,
                stack: 17,
                born: 33,
                folded: 4000,
                aside: 90,
                idle: 6,
            },
        ];
        assert_eq!(Record::all(&bytes).unwrap(), all);
        bytes.truncate(bytes.len() - 1);
        assert_eq!(Record::all(&bytes).unwrap(), all[..2]);
        // A stack longer than any, and a file of another kind.
        bytes[5 * 8 + 4] = 0xFF;
        assert_eq!(Record::all(&bytes).unwrap(), all[..1]);
        bytes[0] ^= 1;
        assert_eq!(Record::all(&bytes), None);
        assert_eq!(Record::all(&[]), None);
    }
}
