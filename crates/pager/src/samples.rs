//! Sampled blocks of the host's allocator, and what the pager knows of their pages, for a profile of the heap: who holds the memory that
//! nobody touches.
//!
//! They go to a file that who asks has made beside the control page, named as that with [`PREFIX`] and the number of the request in front, as
//! records of words of eight bytes, little end first ([`Record`]). So a program that nobody looks at spends nothing on it.
//!
//! What it is not: the sampling, which is the allocator's, nor names of functions.

mod writing;

use alloc::vec::Vec;
use memfold_sys::Result;

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
    pub each: fn(Show<'_>) -> Result<()>,
}

/// Who is shown parts, one after the other.
pub type Show<'a> = &'a mut dyn FnMut(Part<'_>) -> Result<()>;

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
        let mut words =
            bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)));
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
