//! Blocks from malloc and its kin, filled with known words.

use super::findings::{Findings, Mismatch, Tags};
use memfold_stats::Rng;
use std::ptr::NonNull;

/// Largest block, bytes: large enough to have a mapping of its own in any allocator.
const MOST: u64 = 3 << 20;

/// An allocated block; freed when dropped, by whichever thread drops it.
#[derive(Debug)]
pub(super) struct Block {
    start: NonNull<u8>,
    bytes: usize,
    tag: u64,
}

// SAFETY: a block belongs to one owner at a time, and any thread may free it.
unsafe impl Send for Block {}

/// Mostly small, at times very large: the power of two is drawn first.
fn size(rng: &mut Rng) -> usize {
    let power = rng.below(18).min(rng.below(18)) + 4;
    let size = (1u64 << power) + rng.below(1 << power);
    size.min(MOST) as usize
}

impl Block {
    /// Allocates by one of the functions that do so, and fills the block. `None` without memory.
    pub fn allocate(findings: &Findings, rng: &mut Rng, tags: &mut Tags) -> Option<Block> {
        let bytes = size(rng);
        // SAFETY: plain allocation calls with valid arguments.
        let raw = unsafe {
            match rng.below(4) {
                0 => libc::calloc(bytes.div_ceil(8), 8),
                1 => libc::memalign(1 << (4 + rng.below(10)), bytes),
                _ => libc::malloc(bytes),
            }
        };
        let mut block = Block { start: NonNull::new(raw.cast())?, bytes, tag: tags.next() };
        block.fill(findings);
        Some(block)
    }

    /// A block that `calloc` must have zeroed, all of it; reports if it did not.
    pub fn check_calloc(findings: &Findings, rng: &mut Rng) {
        let bytes = size(rng);
        // SAFETY: `calloc` takes any size, and the block is read within its length, then freed.
        unsafe {
            let raw = libc::calloc(1, bytes).cast::<u8>();
            if raw.is_null() {
                return;
            }
            let bad = (0..bytes).find(|&at| raw.add(at).read_volatile() != 0);
            let wrong = bad.map(|at| Mismatch {
                what: "calloc".into(),
                address: raw as usize + at,
                expected: 0,
                found: u64::from(raw.add(at).read_volatile()),
            });
            findings.saw(bytes, wrong);
            // Left dirty for the next one.
            std::ptr::write_bytes(raw, 0xa5, bytes);
            libc::free(raw.cast());
        }
    }

    /// Changes the size; what both sizes have must stay, and is checked.
    pub fn resize(&mut self, findings: &Findings, rng: &mut Rng) {
        let bytes = size(rng);
        // SAFETY: the block is ours and allocated; on failure it stays as it is.
        let Some(start) = NonNull::new(unsafe { libc::realloc(self.start.as_ptr().cast(), bytes) }) else {
            return;
        };
        self.start = start.cast();
        self.bytes = self.bytes.min(bytes);
        self.check(findings);
        self.bytes = bytes;
        self.fill(findings);
    }

    fn byte(&self, findings: &Findings, at: usize) -> u8 {
        findings.content.word(self.tag, at / 8).to_le_bytes()[at % 8]
    }

    fn fill(&mut self, findings: &Findings) {
        let words = self.bytes / 8;
        for index in 0..words {
            // SAFETY: within the block, which is aligned for any word.
            unsafe {
                self.start
                    .as_ptr()
                    .cast::<u64>()
                    .add(index)
                    .write_volatile(findings.content.word(self.tag, index))
            };
        }
        for at in words * 8..self.bytes {
            // SAFETY: within the block.
            unsafe { self.start.as_ptr().add(at).write_volatile(self.byte(findings, at)) };
        }
    }

    /// Changes the last byte behind the model's back.
    #[cfg(test)]
    pub fn spoil_last_byte(&self) {
        // SAFETY: within the block.
        unsafe { *self.start.as_ptr().add(self.bytes - 1) ^= 1 };
    }

    /// Compares the block with what it was filled with.
    pub fn check(&self, findings: &Findings) {
        let words = self.bytes / 8;
        let wrong_word = (0..words).find_map(|index| {
            let expected = findings.content.word(self.tag, index);
            // SAFETY: within the block.
            let found = unsafe { self.start.as_ptr().cast::<u64>().add(index).read_volatile() };
            (found != expected).then_some((index * 8, expected, found))
        });
        let wrong_byte = || {
            (words * 8..self.bytes).find_map(|at| {
                let expected = self.byte(findings, at);
                // SAFETY: within the block.
                let found = unsafe { self.start.as_ptr().add(at).read_volatile() };
                (found != expected).then_some((at, u64::from(expected), u64::from(found)))
            })
        };
        let wrong = wrong_word.or_else(wrong_byte).map(|(at, expected, found)| Mismatch {
            what: "block".into(),
            address: self.start.as_ptr() as usize + at,
            expected,
            found,
        });
        findings.saw(self.bytes, wrong);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by malloc or its kin, and dropped once.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}
