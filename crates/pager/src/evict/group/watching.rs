//! Looking at the limit of the control groups. Background thread only.

use crate::config::{Setting, BY_GROUP};
use crate::engine::Engine;
use crate::evict::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::cgroup::Group;
use memfold_sys::thread;
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

/// So much is left when the limit begins to be kept, bytes: memory that fills while this thread waits for a CPU. Twice as much when it is kept no more.
const NEAR: u64 = 512 << 20;

/// What is left of the group's limit for what is not counted before it is there: one part in so many at least, and this much, but not more than one part in so many.
const MARGIN: (u64, u64, u64) = (64, 16 << 20, 8);

/// How much of a group's limit its processes are kept to. A program that does with what the group has is not to be made to wait for less.
fn kept_of(limit: u64) -> u64 {
    let (least, wanted, most) = MARGIN;
    limit - wanted.clamp(limit / least, limit / most)
}

/// The memory in use from which on the limit is kept, however little may be used besides.
fn begins_at(limit: u64) -> u64 {
    kept_of(limit).saturating_sub(NEAR).max(limit / USED)
}

/// What a process that has `own` may have of so much, where others have so much: what they leave, and its part of all where that is too much. Each sheds its part then,
/// and not all of them the whole.
fn share_of(part: u64, own: u64, others: u64) -> u64 {
    let used = own.saturating_add(others);
    if used <= part {
        part - others
    } else {
        (u128::from(own) * u128::from(part) / u128::from(used)) as u64
    }
}

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
            (self.watch.pressed, self.watch.group, self.watch.found_at) = (false, None, None);
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
            self.watch.others = group.held().unwrap_or(own).saturating_sub(own);
        }
        let mine =
            share_of(kept_of(limit), own, self.watch.others).max(limit / LEAST) & !(PAGE_SIZE as u64 - 1);
        let engine = self.engine;
        let folded =
            (engine.counts.stored.load(Relaxed) + engine.counts.aside.load(Relaxed)) * PAGE_SIZE as u64;
        let mapped = engine.counts.managed.load(Relaxed) + engine.tables.young.bytes();
        let used = own + self.watch.others;
        let kept = engine.options.group_limit.load(Relaxed) != u64::MAX;
        let left = |used: u64| kept_of(limit).saturating_sub(used);
        let keep = if kept {
            let in_all = used + folded;
            in_all >= limit / FORGOTTEN && left(in_all) < 2 * NEAR
        } else {
            let may_be = used >= limit / MAY_BE_USED && mapped + self.watch.others >= limit / USED;
            used >= begins_at(limit) || may_be && left(used) < NEAR
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

    /// How long it takes at least until the group's limit has to be kept; `None` where there is none, and where it is: then the room below it is counted page by page.
    pub(crate) fn group_pause(&self) -> Option<Nanos> {
        let group = self.watch.group.as_ref().filter(|_| !self.engine.room.is_kept())?;
        let own = self.engine.control().anonymous_bytes.load(Relaxed);
        let left = begins_at(group.limit).saturating_sub(own + self.watch.others);
        Some(Nanos(left / FILLING).max(SHORTEST))
    }

    /// Whether the group's limit has to be kept from now on, by one look at what the process has.
    fn group_comes_near(&self) -> bool {
        let Some(group) = &self.watch.group else { return false };
        let own = self.anonymous().unwrap_or(0) * PAGE_SIZE as u64;
        own + self.watch.others >= begins_at(group.limit)
    }

    /// Sleeps until a pass is due, somebody rings, or the group's limit has to be kept. Parked.
    pub(crate) fn sleep(&mut self, bell: u32) {
        let mut left = self.tick();
        loop {
            let pause = self.group_pause().map_or(left, |pause| pause.min(left));
            thread::sleep_on(&self.engine.agents.bell, bell, pause);
            left = Nanos(left.0 - pause.0);
            if left == Nanos(0) || self.engine.agents.bell.load(Acquire) != bell || self.group_comes_near() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_left_of_a_limit_is_a_part_of_it_and_no_more_than_is_needed() {
        assert_eq!(kept_of(96 * MIB), 84 * MIB);
        assert_eq!(kept_of(800 * MIB), 784 * MIB);
        assert_eq!(kept_of(4096 * MIB), 4032 * MIB);
        assert_eq!(kept_of(0), 0);
        assert_eq!([200, 4096].map(|limit| begins_at(limit * MIB) / MIB), [100, 3520]);
    }

    #[test]
    fn several_processes_shed_together_what_is_too_much() {
        assert_eq!(share_of(100, 30, 50), 50, "what the others leave");
        assert_eq!(share_of(100, 30, 70), 30);
        // Eight of twenty each, for a hundred: they come to a hundred, and stay.
        let each = share_of(100, 20, 140);
        assert_eq!(each, 12);
        assert_eq!(share_of(100, each, 7 * each), 100 - 7 * each);
        assert_eq!(share_of(100, 0, 200), 0);
    }
}
