//! The memory that a workload works on: blocks of known contents, in pieces of 64 KiB, and when each piece was touched.
//!
//! What it is: one mapping cut into blocks of a page, or blocks of different sizes from malloc.
//!
//! Invariants: a block's first word is its stamp, a function of its number, and each touch checks it, so memory that was
//! lost or mixed up shows. Blocks do not overlap; a worker touches blocks of its own pieces only, so no two threads
//! write the same word. The table of touches is the truth about what is cold, by pieces and milliseconds.

use super::data::Filler;
use anyhow::{ensure, Context, Result};
use memfold_stats::Rng;
use memfold_sys::{mem, PAGE_SIZE};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes of a piece; those made of malloc's blocks are larger by up to one block.
pub(super) const PIECE: usize = 64 << 10;
/// Largest and smallest block that comes from malloc.
const BLOCKS: Range<usize> = 256..8192;

#[derive(Clone, Copy)]
struct Block {
    address: usize,
    len: usize,
}

/// Where the blocks come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// One mapping, in ordinary pages.
    Mapping,
    /// malloc.
    Heap,
}

/// The memory.
pub(super) struct Ground {
    blocks: Vec<Block>,
    /// Number of the first block of each piece, and the number of all blocks.
    starts: Vec<usize>,
    touched_ms: Vec<AtomicU32>,
    wrong: AtomicU64,
    begin: Instant,
}

impl Ground {
    /// Takes `bytes` of memory and fills them.
    ///
    /// # Errors
    /// When `bytes` is less than a piece, or there is not so much memory.
    pub(super) fn new(origin: Origin, bytes: usize, filler: &Filler, seed: u64) -> Result<Ground> {
        let pieces = bytes / PIECE;
        ensure!(pieces > 0, "a region of {bytes} bytes is smaller than a piece of {PIECE}");
        let (blocks, starts) = match origin {
            Origin::Mapping => mapping(pieces)?,
            Origin::Heap => heap(pieces, &mut Rng::new(seed))?,
        };
        let touched_ms = (0..pieces).map(|_| AtomicU32::new(0)).collect();
        let ground = Ground { blocks, starts, touched_ms, wrong: AtomicU64::new(0), begin: Instant::now() };
        for (number, block) in ground.blocks.iter().enumerate() {
            // SAFETY: the block is ours, of this length, and nobody else has it yet.
            let bytes = unsafe { std::slice::from_raw_parts_mut(block.address as *mut u8, block.len) };
            filler.fill(number as u64, bytes);
            // SAFETY: blocks are at least 256 bytes and aligned to words.
            unsafe { (block.address as *mut u64).write(stamp(number)) };
        }
        Ok(Ground { begin: Instant::now(), ..ground })
    }

    /// From the first byte of all blocks to the one after the last.
    pub(super) fn bounds(&self) -> (usize, usize) {
        let start = self.blocks.iter().map(|block| block.address).min().unwrap_or(0);
        let end = self.blocks.iter().map(|block| block.address + block.len).max().unwrap_or(0);
        (start, end)
    }

    /// How many pieces there are.
    pub(super) fn pieces(&self) -> usize {
        self.touched_ms.len()
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.len).sum()
    }

    /// Words that did not hold what they should.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Relaxed)
    }

    /// Reads and writes a random block of a piece.
    #[inline]
    pub(super) fn touch(&self, piece: usize, rng: &mut Rng) {
        let blocks = self.blocks_of(piece);
        let number = blocks.start + rng.below(blocks.len() as u64) as usize;
        self.stamp_touch(piece);
        self.check(number);
    }

    /// Reads a whole piece and writes each of its blocks; the sum of its words.
    pub(super) fn stream(&self, piece: usize) -> u64 {
        self.stamp_touch(piece);
        let mut sum = 0u64;
        for number in self.blocks_of(piece) {
            self.check(number);
            let Block { address, len } = self.blocks[number];
            for word in 0..len / 8 {
                // SAFETY: within the block; its only writer is the calling thread.
                sum = sum.wrapping_add(unsafe { (address as *const u64).add(word).read() });
            }
        }
        sum
    }

    /// Whether a random block of a piece is whole, without noting the touch: for forked children.
    pub(super) fn is_whole(&self, piece: usize, rng: &mut Rng) -> bool {
        let blocks = self.blocks_of(piece);
        let number = blocks.start + rng.below(blocks.len() as u64) as usize;
        self.add_one(number) == stamp(number)
    }

    /// When the piece was last touched, milliseconds since the ground was made.
    pub(super) fn touched_ms(&self, piece: usize) -> u32 {
        self.touched_ms[piece].load(Relaxed)
    }

    /// Milliseconds since the ground was made.
    pub(super) fn now_ms(&self) -> u32 {
        self.begin.elapsed().as_millis() as u32
    }

    /// Bytes of a piece.
    pub(super) fn bytes_of(&self, piece: usize) -> usize {
        self.blocks_of(piece).map(|number| self.blocks[number].len).sum()
    }

    /// Has the kernel swap a piece out, with the other ends of its first and last pages.
    pub(super) fn page_out(&self, piece: usize) {
        let mut range = 0..0;
        for number in self.blocks_of(piece) {
            let Block { address, len } = self.blocks[number];
            let (start, end) = (address / PAGE_SIZE * PAGE_SIZE, (address + len).next_multiple_of(PAGE_SIZE));
            if start <= range.end && start >= range.start {
                range.end = range.end.max(end);
            } else {
                page_out(&range);
                range = start..end;
            }
        }
        page_out(&range);
    }

    fn blocks_of(&self, piece: usize) -> Range<usize> {
        self.starts[piece]..self.starts[piece + 1]
    }

    #[inline]
    fn stamp_touch(&self, piece: usize) {
        let (now, noted) = (self.now_ms(), &self.touched_ms[piece]);
        // Relaxed: a statistic that orders nothing.
        if noted.load(Relaxed) != now {
            noted.store(now, Relaxed);
        }
    }

    #[inline]
    fn check(&self, number: usize) {
        if self.add_one(number) != stamp(number) {
            self.wrong.fetch_add(1, Relaxed);
        }
    }

    /// Adds to the block's second word; its stamp.
    #[inline]
    fn add_one(&self, number: usize) -> u64 {
        let words = self.blocks[number].address as *mut u64;
        // SAFETY: the block has at least two words, and the calling thread alone writes it. Volatile: the touch is the
        // point.
        unsafe {
            words.add(1).write_volatile(words.add(1).read_volatile().wrapping_add(1));
            words.read_volatile()
        }
    }
}

fn mapping(pieces: usize) -> Result<(Vec<Block>, Vec<usize>)> {
    let base = super::map(pieces * PIECE)?;
    let pages = PIECE / PAGE_SIZE;
    let blocks = (0..pieces * pages).map(|page| Block { address: base + page * PAGE_SIZE, len: PAGE_SIZE });
    Ok((blocks.collect(), (0..=pieces).map(|piece| piece * pages).collect()))
}

fn heap(pieces: usize, rng: &mut Rng) -> Result<(Vec<Block>, Vec<usize>)> {
    let (mut blocks, mut starts) = (Vec::new(), vec![0]);
    for _ in 0..pieces {
        let mut bytes = 0;
        while bytes < PIECE {
            // Small blocks are more frequent: the smaller of two draws.
            let span = (BLOCKS.end - BLOCKS.start) as u64;
            let len = (BLOCKS.start + rng.below(span).min(rng.below(span)) as usize) / 8 * 8;
            // SAFETY: malloc may be called with any size. The blocks live until the process ends.
            let address = unsafe { libc::malloc(len) } as usize;
            ensure!(address != 0, "malloc has no {len} bytes");
            blocks.push(Block { address, len });
            bytes += len;
        }
        starts.push(blocks.len());
    }
    Ok((blocks, starts))
}

fn page_out(range: &Range<usize>) {
    if !range.is_empty() {
        // An error leaves the pages where they are, which the samples of resident memory show.
        // SAFETY: swapping out changes no contents, whoever owns the pages.
        let _ = unsafe { mem::madvise(range.start, range.len(), libc::MADV_PAGEOUT) };
    }
}

/// What the first word of a block holds.
#[inline]
fn stamp(number: usize) -> u64 {
    (number as u64 ^ 0x6d65_6d66_6f6c_6421).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The share of `pieces` that belongs to worker `number` of `workers`.
///
/// # Errors
/// When there are fewer pieces than workers.
pub(super) fn share(pieces: usize, number: usize, workers: usize) -> Result<Range<usize>> {
    let range = pieces * number / workers..pieces * (number + 1) / workers;
    (!range.is_empty()).then_some(range).with_context(|| {
        format!("{pieces} pieces of {PIECE} bytes are too few for {workers} workers: take a larger region")
    })
}

#[cfg(test)]
mod tests {
    use super::super::data::Data;
    use super::*;

    fn ground(origin: Origin) -> Ground {
        Ground::new(origin, 1 << 20, &Filler::new(Data::Mixed, 1), 1).unwrap()
    }

    #[test]
    fn touches_find_the_stamps_and_a_lost_page_shows() {
        for origin in [Origin::Mapping, Origin::Heap] {
            let (ground, mut rng) = (ground(origin), Rng::new(3));
            assert!(ground.bytes() >= 1 << 20);
            for piece in 0..ground.pieces() {
                ground.touch(piece, &mut rng);
                ground.stream(piece);
                assert!(ground.is_whole(piece, &mut rng));
            }
            assert_eq!(ground.wrong(), 0);
            // SAFETY: the first block is ours; this is what losing it would look like.
            unsafe { (ground.blocks[0].address as *mut u64).write(0) };
            ground.stream(0);
            assert_eq!(ground.wrong(), 1);
        }
    }

    #[test]
    fn the_shares_of_workers_cover_all_pieces_once() {
        let shares: Vec<_> = (0..3).map(|n| share(10, n, 3).unwrap()).collect();
        assert_eq!(shares, [0..3, 3..6, 6..10]);
        assert!(share(2, 0, 3).is_err());
    }
}
