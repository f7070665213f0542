//! What a verification found.

use super::findings::{lock, Mismatch, WAYS};
use super::shared::Shared;
use super::Options;
use crate::control::Peer;
use memfold_pager::control::Mode;
use memfold_sys::inject::{Counters, Point};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// What the pager says of the run.
#[derive(Clone, Debug, Serialize)]
pub struct PagerReport {
    /// Its mode.
    pub mode: &'static str,
    /// Why it is off, if it is.
    pub reason: String,
    /// Requests of the saboteur that it answered.
    pub requests: u64,
    /// Its counters at the end, those of forked children not among them.
    pub counters: memfold_inspect::Counters,
}

impl PagerReport {
    pub(super) fn of(peer: &Peer, requests: u64) -> anyhow::Result<PagerReport> {
        let mut now = peer.now()?;
        if now.mode == Mode::Embedded {
            // A busy machine, or an end meanwhile: then they are as of a moment ago.
            now = peer.await_count(std::time::Duration::from_secs(1)).or_else(|_| peer.now())?;
        }
        let (mode, counters) = (now.mode.name(), now.counters());
        Ok(PagerReport { mode, reason: now.reason, requests, counters })
    }
}

/// The result of a verification.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Names this layout.
    pub schema: &'static str,
    /// What was asked for.
    pub options: Options,
    /// Operations that the threads finished.
    pub operations: u64,
    /// Forked children that were waited for.
    pub children: u64,
    /// Areas moved or resized by `mremap`.
    pub remaps: u64,
    /// Times that the kernel refused to, as it may.
    pub remaps_refused: u64,
    /// Times that memory was handed to the kernel, by kind of call.
    pub calls: BTreeMap<&'static str, u64>,
    /// Bytes compared, those in children included.
    pub bytes_verified: u64,
    /// Words that were wrong, at most one counted a page or block.
    pub mismatch_count: u64,
    /// The first of them.
    pub mismatches: Vec<Mismatch>,
    /// What else went wrong.
    pub failures: Vec<String>,
    /// Kernel calls of the pager that were made to fail, by kind; `None` unless the library was built for that.
    pub injected: Option<BTreeMap<&'static str, u64>>,
    /// The pager's side; `None` in a plain run.
    pub pager: Option<PagerReport>,
}

impl VerifyReport {
    pub(super) fn new(options: Options, shared: &Shared, pager: Option<PagerReport>) -> VerifyReport {
        let found = &shared.findings;
        let mut failures = lock(&found.failures).clone();
        if let Some(PagerReport { counters, .. }) = &pager {
            if counters.pages.evicted == 0 || counters.pages.restored == 0 {
                failures.push(format!(
                    "the pager evicted {} pages and restored {}: nothing was verified of it",
                    counters.pages.evicted, counters.pages.restored
                ));
            }
            if counters.pages.lost > 0 {
                failures.push(format!("the pager reports {} lost pages", counters.pages.lost));
            }
        }
        VerifyReport {
            schema: "memfold-bench-verify-1",
            options,
            operations: shared.beats.iter().map(|beat| beat.count.load(Relaxed)).sum(),
            children: found.children.load(Relaxed),
            remaps: found.moved.load(Relaxed),
            remaps_refused: found.refused.load(Relaxed),
            calls: WAYS.into_iter().zip(found.called.iter().map(|count| count.load(Relaxed))).collect(),
            bytes_verified: found.bytes_verified.load(Relaxed),
            mismatch_count: found.mismatch_count.load(Relaxed),
            mismatches: lock(&found.mismatches).clone(),
            failures,
            injected: injected(),
            pager,
        }
    }

    /// Whether nothing was wrong.
    pub fn passed(&self) -> bool {
        self.mismatch_count == 0 && self.failures.is_empty()
    }
}

/// Asks the preloaded library how often it had calls fail.
pub(super) fn injected() -> Option<BTreeMap<&'static str, u64>> {
    // SAFETY: a look-up by a constant name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memfold_injections".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the library's function of this name has this type, and its counters live as long as the process.
    let counters = unsafe {
        let function: extern "C" fn() -> *const Counters = std::mem::transmute(symbol);
        &*function()
    };
    Some(Point::ALL.iter().map(|&p| (p.name(), counters[p as usize].failed.load(Relaxed))).collect())
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} operations, {} children, {} bytes verified, {} mismatches",
            self.options.seed, self.operations, self.children, self.bytes_verified, self.mismatch_count
        )?;
        match &self.pager {
            None => writeln!(f, "no pager: a plain run")?,
            Some(PagerReport { requests, counters, .. }) => writeln!(
                f,
                "pager: {} pages evicted, {} restored, {} second chances, {} discarded, {} lost; {requests} requests",
                counters.pages.evicted,
                counters.pages.restored,
                counters.pages.second_chance,
                counters.pages.discarded,
                counters.pages.lost
            )?,
        }
        let list = |counts: &BTreeMap<&str, u64>| {
            let each: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            each.join(", ")
        };
        writeln!(f, "handed to the kernel: {}", list(&self.calls))?;
        if let Some(injected) = &self.injected {
            writeln!(f, "made to fail: {}", list(injected))?;
        }
        self.mismatches.iter().try_for_each(|mismatch| writeln!(f, "MISMATCH {mismatch}"))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "FAILURE {failure}"))?;
        write!(f, "{}", if self.passed() { "passed" } else { "failed" })
    }
}
