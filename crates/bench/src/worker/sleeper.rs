//! A program that is idle: it fills a region, sleeps until it is asked, and then checks every page.

use super::{answer, request};
use crate::content::{Content, WORDS};
use anyhow::{ensure, Result};
use memfold_sys::PAGE_SIZE;
use serde::{Deserialize, Serialize};

/// The region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sleeper {
    /// Its size, bytes.
    pub bytes: usize,
    /// What its contents are made from.
    pub seed: u64,
}

/// Answers the number of pages when the region is filled, and to each request the number of wrong words.
pub(super) fn serve(sleeper: &Sleeper) -> Result<()> {
    let pages = sleeper.bytes / PAGE_SIZE;
    ensure!(pages > 0, "a region of {} bytes has no page", sleeper.bytes);
    let content = Content::uniform(sleeper.seed);
    let mut words = vec![0u64; pages * WORDS];
    for (page, words) in words.chunks_exact_mut(WORDS).enumerate() {
        content.fill(page as u64 + 1, words);
    }
    answer(&pages)?;
    while request::<()>()?.is_some() {
        let wrong = words
            .iter()
            .enumerate()
            .filter(|&(place, &word)| word != content.word((place / WORDS) as u64 + 1, place % WORDS));
        answer(&wrong.count())?;
    }
    Ok(())
}
