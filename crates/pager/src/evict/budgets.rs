//! What folding may cost: how much of the program's waiting and of a CPU's time it may take now.
//!
//! What it is not: a decision of what goes. The rules are in [`memfold_policy::stall`], [`memfold_policy::pace`] and
//! [`memfold_policy::returns`]. Background thread only.

use crate::config::Setting;
use crate::evict::group::COLD_AGE_PRESSED;
use crate::evict::worker::Worker;
use crate::sleep::AGE_ASLEEP;
use core::sync::atomic::Ordering::*;
use memfold_policy::budget::NO_LIMIT;
use memfold_policy::pace;
use memfold_sys::time::{self, Nanos};
use memfold_sys::PAGE_SIZE;

/// CPU time for which folding is worth going on with: looking at all extents takes some, ns.
const WORTHWHILE: u64 = 1_000_000;
/// What an eviction is taken to cost this thread from scan to store, ns a page, unless it has cost less so far.
const EVICTION_COST: u64 = 12_000;
/// What a page costs that helpers bring before its time, ns.
const EARLY_COST: u64 = 5_000;
/// Cold age while more is resident than the share of a daemon's budget allows.
const COLD_AGE_OVER_SHARE: Nanos = Nanos::from_millis(200);

impl Worker {
    /// The time, ns, after which what was not touched is cold.
    pub(crate) fn cold_age(&self) -> u64 {
        let cold_age = self.engine.setting(Setting::ColdAge);
        if self.watch.is_pressed() && !self.is_over_share() {
            cold_age.min(COLD_AGE_PRESSED.0)
        } else if self.is_over_share() {
            cold_age.min(COLD_AGE_OVER_SHARE.0)
        } else if self.rest.is_asleep() {
            cold_age.min(AGE_ASLEEP.0)
        } else {
            cold_age
        }
    }

    /// Whether more is in memory as it is, in view or set aside, than the share allows.
    fn is_over_share(&self) -> bool {
        let aside = self.engine.counts.aside.load(Relaxed) * PAGE_SIZE as u64;
        self.engine.control().resident_bytes.load(Relaxed) + aside > self.share()
    }

    /// Whether there is CPU time to fold with now.
    pub(crate) fn may_fold(&self) -> bool {
        self.budgets.pace.left() >= WORTHWHILE.min(pace::worth(pace::BURST, self.cpu_share()))
            || self.is_free_of_budget()
    }

    /// Whether there is CPU time for what is stored already: a page that is still here gains more.
    pub(crate) fn may_compress_again(&self) -> bool {
        // What was spent in this pass was not charged yet.
        self.budgets.pace.can_spare(self.now.since(self.slice.began).0) || self.is_free_of_budget()
    }

    /// Whether more may be set aside: no more than can be compressed when its time has come, and in the second after that.
    pub(crate) fn may_set_aside(&self) -> bool {
        if self.is_free_of_budget() {
            return true;
        }
        let evicted = self.engine.control().pages_evicted.load(Relaxed);
        let cost = self.budgets.pace.total().checked_div(evicted).unwrap_or(EVICTION_COST).min(EVICTION_COST);
        let committed = self.engine.counts.aside.load(Relaxed) * cost;
        let time = self.cold_age().saturating_add(Nanos::from_secs(1).0);
        self.may_fold() && committed <= pace::worth(time, self.cpu_share())
    }

    /// Whether what goes has no budget to wait for.
    pub(crate) fn is_free_of_budget(&self) -> bool {
        self.is_over_share() || self.watch.is_pressed() || self.engine.setting(Setting::MaxCpu) >= NO_LIMIT
    }

    /// The CPU time that folding has taken so far, ns.
    pub(crate) fn spent(&self) -> u64 {
        // Helpers bring before its time what may not be wanted: that is folding's to pay.
        let early = self.engine.control().periods_predicted.load(Relaxed) * EARLY_COST;
        time::thread_cpu().0 + early
    }

    /// A round that could do no more than look has cost so much CPU time, ns: the next such one waits.
    pub(crate) fn put_off_looks(&mut self, cost: u64) {
        self.eviction.next_look = self.now + Nanos(pace::until_next_look(cost, self.cpu_share()));
    }

    /// The share of a CPU that folding may take, in millionths.
    pub(crate) fn cpu_share(&self) -> u64 {
        let limit = self.engine.setting(Setting::MaxCpu);
        self.budgets.returns.allowed(pace::share(
            limit,
            self.budgets.contention.has_spare(),
            self.budgets.pace.total() + self.budgets.spent_before,
            self.budgets.contention.quota(),
        ))
    }

    /// What a fault costs the program, by the last ones, ns.
    pub(crate) fn touch_cost(&mut self) -> u64 {
        let waited = self.engine.latency.stall.load(Relaxed);
        self.budgets.touch.note(waited, self.engine.control().fault_ns.count.load(Relaxed));
        self.budgets.touch.get()
    }
}
