//! Counters that all threads add to with no lock, one a page: an increment that is lost between an eviction and a write,
//! or made in a stale copy of a page, shows in the sum.

use super::findings::{Findings, Mismatch};
use anyhow::{ensure, Result};
use memfold_sys::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAGES: usize = 512;

/// See the module. Mapped for as long as the process lives.
#[derive(Debug)]
pub(super) struct Tally {
    base: usize,
}

impl Tally {
    pub fn map() -> Result<Tally> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, placed by the kernel.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE_SIZE, prot, flags, -1, 0) };
        ensure!(raw != libc::MAP_FAILED, "cannot map the tally: {}", std::io::Error::last_os_error());
        Ok(Tally { base: raw as usize })
    }

    /// Adds 1 to the counter that the number `draw` selects.
    pub fn count(&self, draw: u64) {
        self.counter(draw as usize % PAGES).fetch_add(1, Relaxed);
    }

    /// The sum of all counters must be what the threads counted.
    pub fn check(&self, findings: &Findings, expected: u64) {
        // Relaxed: the threads have been joined.
        let found: u64 = (0..PAGES).map(|page| self.counter(page).load(Relaxed)).sum();
        let wrong = (found != expected).then_some(Mismatch {
            what: "tally".into(),
            address: self.base,
            expected,
            found,
        });
        findings.saw(PAGES * 8, wrong);
    }

    fn counter(&self, page: usize) -> &AtomicU64 {
        // The word moves with the page, so that neighbours do not share a cache set.
        let address = self.base + page * PAGE_SIZE + (page % 64) * 64;
        // SAFETY: within the mapping, aligned, zeroed at first, only ever used as an atomic.
        unsafe { &*(address as *const AtomicU64) }
    }
}
