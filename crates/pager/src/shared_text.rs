//! Texts on pages that processes share.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// A text that processes share: UTF-8, zero-terminated, in words of eight bytes. One writer at a time; who reads
/// meanwhile may get a mixture.
#[repr(transparent)]
pub struct SharedText<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> SharedText<WORDS> {
    /// Most bytes that it holds.
    pub const MOST: usize = WORDS * 8 - 1;

    /// An empty text.
    pub const fn new() -> SharedText<WORDS> {
        SharedText([const { AtomicU64::new(0) }; WORDS])
    }

    /// Writes it; cut at [`SharedText::MOST`] bytes.
    pub fn set(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(Self::MOST)];
        for (i, word) in self.0.iter().enumerate() {
            let mut raw = [0u8; 8];
            let part = bytes.get(i * 8..bytes.len().min(i * 8 + 8)).unwrap_or(&[]);
            raw[..part.len()].copy_from_slice(part);
            word.store(u64::from_le_bytes(raw), Relaxed);
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0[0].load(Relaxed) & 0xFF == 0
    }

    /// Reads it into `buffer`, of at least eight bytes a word; empty if it is not UTF-8.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> &'a str {
        for (word, raw) in self.0.iter().zip(buffer.chunks_exact_mut(8)) {
            raw.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        let end = buffer.iter().take(WORDS * 8).position(|&b| b == 0).unwrap_or(Self::MOST);
        core::str::from_utf8(&buffer[..end]).unwrap_or("")
    }
}

impl<const WORDS: usize> Default for SharedText<WORDS> {
    fn default() -> Self {
        SharedText::new()
    }
}
