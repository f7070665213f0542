//! The one loop of eviction: it goes round the extents, asks a policy what is due for each, and does that.
//!
//! What it is not: a decision. Which extents and pages go, and when, a [`Policy`] says: by their age ([`crate::evict::by_age`]) or by a page daemon
//! ([`crate::evict::page_daemon`]). What goes for a limit does not wait for the budgets; all that goes because it is cold does, whoever said so.
//!
//! Background thread only. It only tries locks of extents, and a round that is interrupted is gone on with later.

use crate::config::Setting;
use crate::evict::worker::{Round, Worker};
use crate::tables::bitmap::PageSet;
use crate::tables::extent::{Extent, Locked, WAITS_FOR_CPU, WAITS_FOR_ROOM, WAITS_FOR_STALL};
use crate::tables::space::moment;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;
use memfold_sys::EXTENT_SIZE;

/// What a policy wants done with an extent.
pub(crate) enum Due<'e> {
    /// Nothing: it has nothing that could go.
    Empty,
    /// Nothing now.
    Nothing,
    /// Nothing but what is good for every extent whose time has not come.
    Care,
    /// Everything comes back.
    BringBack,
    /// What is set aside comes back, and what is stored stays.
    BringBackAside,
    /// Its writes are tracked.
    Watch(Locked<'e>),
    /// What the policy will choose is set aside.
    SetAside(Locked<'e>),
    /// The same, of what has shown before that next to nothing of it is touched, so that the program need have no waiting left for it.
    SetAsideAgain(Locked<'e>),
    /// What is still set aside of these pages is compressed.
    Launder(PageSet),
}

/// What a policy has chosen to be set aside of an extent.
pub(crate) struct Choice {
    /// The pages; `None` where it cannot be told.
    pub pages: Option<PageSet>,
    /// They are one huge page.
    pub huge: bool,
    /// The kernel had refused to move these before, and it is no news if it does again.
    pub refused: PageSet,
}

/// A policy at work, as the loop sees it: asked for each extent in turn, and told what came of the answer.
pub(crate) trait Policy {
    /// Whether it keeps a limit. If not, what goes is only cold, and waits for the budgets.
    const KEEPS_LIMIT: bool;

    /// Begins a round, or goes on with one; `None` where none is due.
    fn begin(&mut self, worker: &mut Worker) -> Option<Round>;

    /// Sees what became of an extent since the last round. In rounds that [see first](Round::sees_first).
    fn see(&mut self, _: &mut Worker, _: &Extent) {}

    /// All extents were seen.
    fn decide(&mut self, _: &mut Worker) {}

    /// What is due for an extent.
    fn due<'e>(&mut self, worker: &mut Worker, extent: &'e Extent) -> Due<'e>;

    /// After [`Due::Watch`]: whether its writes are tracked now, as far as the kernel can.
    fn watched(&mut self, _: &Worker, _: &mut Locked, _: bool) {}

    /// Chooses what is set aside, after [`Due::SetAside`] and where the budgets allow it.
    fn choose(&mut self, worker: &mut Worker, extent: &mut Locked) -> Choice;

    /// Sets aside what was chosen. Returns how many pages went.
    fn set_aside(&mut self, worker: &mut Worker, extent: &mut Locked, choice: &Choice) -> usize;

    /// Before [`Due::Launder`] is done, or gone on with.
    fn launders(&mut self, _: &Extent) {}

    /// After it was. Returns whether the extent must be gone on with at once.
    fn laundered(&mut self, worker: &mut Worker, extent: &Extent) -> bool;

    /// After [`Due::BringBack`] or [`Due::BringBackAside`].
    fn brought_back(&mut self, _: &Worker, _: &Extent) {}

    /// The loop goes on to the next extent.
    fn visited(&mut self, _: &mut Worker, _: &Round, _: &Extent) {}

    /// The round is over, or interrupted if there is a place at which [to go on](Round::at). Returns whether there is more to do at once.
    fn end(&mut self, worker: &mut Worker, round: Round) -> bool;
}

/// What the stall budget allows in one round.
struct Allowance {
    /// Extents of which something may be set aside.
    probes: u64,
    /// It was less than was due, from this extent on.
    held: Option<usize>,
}

impl Allowance {
    /// Nothing waits for the stall budget.
    const fn all() -> Allowance {
        Allowance { probes: u64::MAX, held: None }
    }
}

impl Worker {
    /// Goes round by a policy: once, or until a round was made that others may interrupt. Returns whether there is more to do at once.
    pub(crate) fn evict_by(&mut self, policy: &mut impl Policy) -> bool {
        let mut more = false;
        while let Some(round) = policy.begin(self) {
            more = self.visit_all(policy, round);
            if !round.whole {
                break;
            }
            self.slice.began = self.now;
        }
        more
    }

    fn visit_all<P: Policy>(&mut self, policy: &mut P, mut round: Round) -> bool {
        if round.sees_first {
            for extent in self.engine.space().all() {
                policy.see(self, extent);
                self.stay_responsive();
            }
            policy.decide(self);
        }
        let mut allowance = self.allowance::<P>();
        let began = core::mem::take(&mut round.at);
        let space = self.engine.space();
        let awake = space.awake(if round.all { u32::MAX } else { moment(self.now.0) });
        for extent in awake.filter(|extent| extent.base() >= began) {
            let Some(more) = self.visit(policy, extent, &mut allowance) else { continue };
            round.more |= more;
            policy.visited(self, &round, extent);
            if round.whole {
                self.stay_responsive();
            } else if self.interrupted() {
                round.at = extent.base() + EXTENT_SIZE;
                break;
            }
        }
        if allowance.held.is_some() {
            self.engine.control().budget_holds.fetch_add(1, Relaxed);
        }
        self.eviction.held.note(allowance.held);
        round.from_start = began == 0;
        policy.end(self, round)
    }

    fn allowance<P: Policy>(&mut self) -> Allowance {
        if P::KEEPS_LIMIT {
            return Allowance::all();
        }
        if self.may_fold() && !self.is_free_of_budget() {
            // Work takes at least as long as the CPU time that it costs.
            self.slice.length = self.slice.length.min(Nanos(self.budgets.pace.left()));
        }
        let limit = self.engine.setting(Setting::MaxStall);
        let cost = self.touch_cost();
        Allowance { probes: self.budgets.stall.looks(self.now.0, limit, cost), held: None }
    }

    /// Does what is due for one extent. Returns whether it must be gone on with at once; `None` where there was nothing that could go.
    fn visit<P: Policy>(
        &mut self,
        policy: &mut P,
        extent: &Extent,
        allowance: &mut Allowance,
    ) -> Option<bool> {
        let again = match policy.due(self, extent) {
            Due::Empty => return None,
            Due::Nothing => false,
            Due::Care => self.care_for(extent),
            back @ (Due::BringBack | Due::BringBackAside) => {
                match back {
                    Due::BringBack => self.bring_all(extent, false),
                    _ => self.bring_aside(extent),
                }
                policy.brought_back(self, extent);
                false
            }
            _ if !P::KEEPS_LIMIT && !self.may_fold() => put_off(extent, WAITS_FOR_CPU),
            Due::Watch(mut locked) => {
                extent.waits_for.store(0, Relaxed);
                let watching = if self.kernel.tracks_writes { self.watch(&locked) } else { Some(true) };
                if let Some(watching) = watching {
                    policy.watched(self, &mut locked, watching);
                }
                false
            }
            Due::SetAside(locked) => self.set_aside_by(policy, locked, allowance),
            Due::SetAsideAgain(locked) => self.set_aside_by(policy, locked, &mut Allowance::all()),
            Due::Launder(pages) => {
                extent.waits_for.store(0, Relaxed);
                policy.launders(extent);
                !self.launder(extent, &pages) || policy.laundered(self, extent)
            }
        };
        Some(again)
    }

    /// Sets aside what the policy chooses, where the budgets allow that.
    fn set_aside_by<P: Policy>(
        &mut self,
        policy: &mut P,
        mut extent: Locked<'_>,
        allowance: &mut Allowance,
    ) -> bool {
        if !P::KEEPS_LIMIT {
            if allowance.probes == 0 {
                allowance.held.get_or_insert(extent.base());
                return put_off(&extent, WAITS_FOR_STALL);
            }
            if !self.may_set_aside() {
                return put_off(&extent, WAITS_FOR_CPU);
            }
            if !self.has_place_for(&extent) {
                return put_off(&extent, WAITS_FOR_ROOM);
            }
            // Who walks would come to it at once.
            if self.engine.conditions.is_walked(self.now) {
                return false;
            }
        }
        extent.waits_for.store(0, Relaxed);
        let choice = policy.choose(self, &mut extent);
        if policy.set_aside(self, &mut extent, &choice) != 0 {
            allowance.probes -= 1;
        }
        if !P::KEEPS_LIMIT {
            let refused = extent.refused.load().minus(&choice.refused);
            let place = extent.place();
            drop(extent);
            self.set_aside_unshared(place, &refused);
        }
        false
    }

    /// Whether there is a slot for what is set aside of the extent.
    fn has_place_for(&self, extent: &Extent) -> bool {
        // SAFETY: we are the background thread.
        extent.staging.load(Relaxed) != 0 || unsafe { self.kernel.staging.has_room() }
    }
}

/// What is due for an extent has to wait for this. Returns that it is not to be gone on with at once.
fn put_off(extent: &Extent, what: u32) -> bool {
    extent.waits_for.store(what, Relaxed);
    false
}
