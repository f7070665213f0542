//! The sources that see a process from outside, as the launcher and the daemon use them: cold is what the observer has not seen touched for the cold
//! age.

use super::{Ground, Source};
use crate::Unsupported;
use anyhow::{Context, Result};
use memfold_daemon::observe::{self, Observer, Places};
use memfold_pager::source::Kind;
use memfold_sys::PAGE_SIZE;
use std::time::Duration;

/// The observer of this process.
pub struct Outside {
    observer: Box<dyn Observer>,
    base: usize,
    cold: Duration,
    began_ns: u64,
}

impl Outside {
    /// Begins to observe.
    pub fn new(ground: &Ground, cold: Duration, kind: Kind) -> Result<Outside> {
        let observer = observe::start(kind, &Places::default(), &[std::process::id()], cold)
            .map_err(|refusal| Unsupported(refusal.to_string()))?;
        let began_ns = observer.kernel_ns();
        Ok(Outside { observer, base: ground.base, cold, began_ns })
    }
}

impl Source for Outside {
    fn cold(&mut self, cold: &mut [bool]) -> Result<()> {
        let seen = self.observer.look(&[std::process::id()]).pop().context("nothing was looked at")??;
        let pages = cold.len();
        for piece in seen.iter().filter(|piece| u128::from(piece.for_ns) >= self.cold.as_nanos()) {
            let page = |address: usize| (address.saturating_sub(self.base) / PAGE_SIZE).min(pages);
            cold[page(piece.start)..page(piece.end)].fill(true);
        }
        Ok(())
    }

    fn background_ns(&self) -> u64 {
        self.observer.kernel_ns().saturating_sub(self.began_ns)
    }
}
