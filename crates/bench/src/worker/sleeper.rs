//! A program that is idle: it fills a region, sleeps until it is asked, and then checks every page.

use super::region::Region;
use super::{answer, request};
use anyhow::Result;
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
    let region = Region::filled(sleeper.bytes, sleeper.seed)?;
    answer(&region.pages())?;
    while request::<()>()?.is_some() {
        answer(&region.wrong_words())?;
    }
    Ok(())
}
