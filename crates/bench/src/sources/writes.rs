//! Cold is what was not written for the cold age, by asynchronous write protection (Linux 6.7). Reads go unseen.

use super::{Ground, Source};
use crate::Unsupported;
use anyhow::Result;
use memfold_sys::pagemap::{Categories, Pagemap, Query, Run};
use memfold_sys::uffd::{Features, Modes, Userfaultfd};
use memfold_sys::PAGE_SIZE;
use std::time::{Duration, Instant};

/// The source.
pub struct Writes {
    base: usize,
    cold: Duration,
    written: Vec<Instant>,
    pagemap: Pagemap,
    _uffd: Userfaultfd,
}

impl Writes {
    /// Begins to track the ground's writes.
    pub fn new(ground: &Ground, cold: Duration) -> Result<Writes> {
        let uffd =
            Userfaultfd::open().map_err(|e| Unsupported(format!("userfaultfd is not permitted: {e}")))?;
        uffd.handshake(Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED | Features::WP_ASYNC).map_err(
            |e| Unsupported(format!("the kernel cannot track writes (Linux 6.7 or later can): {e}")),
        )?;
        uffd.register(ground.base, ground.len(), Modes::WP)?;
        let written = vec![Instant::now(); ground.touched.len()];
        Ok(Writes { base: ground.base, cold, written, pagemap: Pagemap::open()?, _uffd: uffd })
    }
}

impl Source for Writes {
    fn cold(&mut self, cold: &mut [bool]) -> Result<()> {
        let all = Categories::PRESENT | Categories::WRITTEN;
        let query = Query { all, none: Categories::ZERO, report: Categories::WRITTEN, protect: true };
        let (mut at, end) = (self.base, self.base + self.written.len() * PAGE_SIZE);
        let (mut runs, now) = ([Run::EMPTY; 256], Instant::now());
        while at < end {
            let (count, stopped) = self.pagemap.scan(at, end, &query, &mut runs)?;
            for run in &runs[..count] {
                let page = |addr: u64| (addr as usize - self.base) / PAGE_SIZE;
                self.written[page(run.start)..page(run.end)].fill(now);
            }
            at = stopped.max(at + PAGE_SIZE);
        }
        for (cold, written) in cold.iter_mut().zip(&self.written) {
            *cold = now - *written >= self.cold;
        }
        Ok(())
    }

    fn background_ns(&self) -> u64 {
        0
    }
}
