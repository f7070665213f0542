//! Looking at the limit of the control groups. Background thread only.

use crate::config::{Setting, AUTO, BY_GROUP};
use crate::engine::Engine;
use crate::evict::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::cgroup::Group;
use memfold_sys::time::Nanos;
use memfold_sys::PAGE_SIZE;

/// How often the limit is looked for, and the group's other processes.
const FIND: Nanos = Nanos::from_secs(10);

const COUNT: Nanos = Nanos::from_secs(1);

/// The part of the group's limit in use, one in so many, at which the limit is kept; the part at which it is if more could be in use,
/// by what is mapped; and the part below which it is kept no more.
const USED: u64 = 2;

const MAY_BE_USED: u64 = 4;

const FORGOTTEN: u64 = 6;

/// The least that is kept of the group's limit whatever its other processes have, one part in so many.
const LEAST: u64 = 8;

/// How fast a program is taken to touch new memory, bytes a ns: the limit is looked at before that could fill what is left.
const FILLING: u64 = 2;

const SHORTEST: Nanos = Nanos::from_millis(5);

/// The part of the limit, in per cent, above which it presses, and the cold age that holds then.
const PRESSING: u64 = 75;

impl Engine {
    /// The limit on resident memory that holds now, bytes: the one that was set, or one that follows from the groups'; `u64::MAX` for
    /// none.
    pub fn limit(&self) -> u64 {
        match self.setting(Setting::ResidentLimit) {
            BY_GROUP => self.options.group_limit.load(Relaxed),
            limit => limit,
        }
    }
}

impl Worker {
    /// Looks how near the group's limit is, and keeps it or ceases to.
    pub(crate) fn look_at_group(&mut self) {
        if self.engine.setting(Setting::ResidentLimit) != BY_GROUP {
            self.watch.pressed = false;
            return;
        }
        if self.watch.found_at.is_none_or(|at| self.now.since(at) >= FIND) {
            self.watch.found_at = Some(self.now);
            self.watch.group = Group::tightest().ok();
        }
        let Some(group) = &self.watch.group else {
            self.watch.pressed = false;
            return self.engine.options.group_limit.store(u64::MAX, Relaxed);
        };
        let limit = group.limit;
        // Where it cannot be told, nothing is kept to.
        let own = self.anonymous().unwrap_or(0) * PAGE_SIZE as u64;
        if self.now.since(self.watch.counted_at) >= COUNT {
            self.watch.counted_at = self.now;
            self.watch.others = group.anonymous().unwrap_or(own).saturating_sub(own);
        }
        let part = (u128::from(limit) * u128::from(AUTO) / 1_000_000) as u64;
        let mine = part.saturating_sub(self.watch.others).max(limit / LEAST) & !(PAGE_SIZE as u64 - 1);
        let engine = self.engine;
        let folded =
            (engine.counts.stored.load(Relaxed) + engine.counts.aside.load(Relaxed)) * PAGE_SIZE as u64;
        let mapped = engine.counts.managed.load(Relaxed) + engine.tables.young.bytes();
        let used = own + self.watch.others;
        let kept = engine.options.group_limit.load(Relaxed) != u64::MAX;
        let keep = if kept {
            own + folded + self.watch.others >= limit / FORGOTTEN
        } else {
            used >= limit / USED || used >= limit / MAY_BE_USED && mapped + self.watch.others >= limit / USED
        };
        if keep {
            // From now on page by page.
            engine.options.huge_pages.keep_limit();
        }
        engine.options.group_limit.store(if keep { mine } else { u64::MAX }, Relaxed);
        // For others to see, what holds now.
        let shown = if keep { mine } else { BY_GROUP };
        engine.control().settings[Setting::ResidentLimit as usize].store(shown, Relaxed);
        self.watch.pressed = keep && own >= mine / 100 * PRESSING;
    }

    /// How long it takes at least until the group's limit could be reached; `None` where there is none.
    pub(crate) fn group_pause(&self) -> Option<Nanos> {
        let group = self.watch.group.as_ref()?;
        let own = self.engine.control().anonymous_bytes.load(Relaxed);
        let left = (group.limit / USED).saturating_sub(own + self.watch.others);
        Some(Nanos(left / FILLING).max(SHORTEST))
    }
}
