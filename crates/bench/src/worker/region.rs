//! Memory of a program of the laboratory, all of which holds known words.

use crate::content::{Content, WORDS};
use anyhow::{ensure, Result};
use memfold_sys::PAGE_SIZE;

/// See the module.
pub(super) struct Region {
    content: Content,
    /// What it holds.
    pub(super) words: Vec<u64>,
}

impl Region {
    /// Of so many bytes, made from a seed.
    pub(super) fn filled(bytes: usize, seed: u64) -> Result<Region> {
        let pages = bytes / PAGE_SIZE;
        ensure!(pages > 0, "a region of {bytes} bytes has no page");
        let content = Content::uniform(seed);
        let mut words = vec![0u64; pages * WORDS];
        for (page, words) in words.chunks_exact_mut(WORDS).enumerate() {
            content.fill(page as u64 + 1, words);
        }
        Ok(Region { content, words })
    }

    /// How many pages it has.
    pub(super) fn pages(&self) -> usize {
        self.words.len() / WORDS
    }

    /// How many words are not those that it was filled with.
    pub(super) fn wrong_words(&self) -> usize {
        let right = |place: usize| self.content.word((place / WORDS) as u64 + 1, place % WORDS);
        self.words.iter().enumerate().filter(|&(place, &word)| word != right(place)).count()
    }
}
