//! Looking at the limit of the control groups. Background thread only.

use crate::config::{Setting, BY_GROUP};
use crate::engine::Engine;
use crate::evict::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::cgroup::{Group, Held};
use memfold_sys::thread;
use memfold_sys::time::Nanos;
use memfold_sys::PAGE_SIZE;

/// How often the limit is looked for.
const FIND: Nanos = Nanos::from_secs(10);

/// The part of the group's limit in use, one in so many, at which the limit is kept; the part at which it is if more could be in use,
/// by what is mapped; and the part below which it is kept no more.
const USED: u64 = 2;

const MAY_BE_USED: u64 = 4;

const FORGOTTEN: u64 = 6;

/// The least that a process is kept to, one part of the group's limit in so many, as long as there is room: files that are mapped have it before.
const LEAST: u64 = 8;

/// How many processes are taken to be in a group that has others below it.
const NESTED: u64 = 16;

/// What the other processes of a group may have been granted, and not yet taken, when its room is gone: one part of the margin in so many; or of the room, which is not gone
/// before they look again.
const UNSEEN: u64 = 2;

const UNSEEN_OF_ROOM: u64 = 8;

/// What is granted at once at least, bytes, where there is as much room.
const GRANTED: u64 = 64 << 10;

/// How fast a process is taken to touch new memory, bytes a ns: the limit is looked at before that could fill what is left.
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

/// What a process that has `own` may have of so much, where all have so much: what is left besides, and its part of all where that is too much. Each sheds its part then,
/// and not all of them the whole.
fn share_of(part: u64, own: u64, all: u64) -> u64 {
    if all <= part {
        own + (part - all)
    } else {
        (u128::from(own) * u128::from(part) / u128::from(all)) as u64
    }
}

/// What one of so many processes may be granted of the room below `limit`, so that they together fill no more than there is, however late the others look again.
fn granted_of(room: u64, limit: u64, processes: u64) -> u64 {
    let unseen = ((limit - kept_of(limit)) / UNSEEN).max(room / UNSEEN_OF_ROOM);
    let others = processes.saturating_sub(1);
    (room / (others + 1)).min(unseen.checked_div(others).unwrap_or(u64::MAX)).max(GRANTED.min(room))
}

/// Room in a group, pages.
pub(crate) struct GroupRoom {
    pub all: u64,
    /// What the process may be granted of it at once.
    pub part: u64,
    /// The same for one of which nothing more can be evicted, and which goes on all the same: of the margin, if need be.
    pub least: u64,
}

impl GroupRoom {
    const UNBOUNDED: GroupRoom = GroupRoom { all: u64::MAX, part: u64::MAX, least: u64::MAX };
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

    /// Keeps the groups' limit from the start where it is near already: the program waits until it is folded. By the background thread, before it opens what that needs.
    pub(crate) fn look_at_group_first(&self) {
        if self.setting(Setting::ResidentLimit) != BY_GROUP {
            return;
        }
        let Ok(group) = Group::tightest() else { return };
        if group.held().is_some_and(|held| held.firm + held.mapped >= begins_at(group.limit)) {
            self.options.huge_pages.keep_limit();
            self.options.group_limit.store(kept_of(group.limit), Relaxed);
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
        self.watch.processes = group.processes().map_or(NESTED, |processes| processes as u64);
        let own = self.count_held();
        let used = self.watch.used();
        let mine = share_of(kept_of(limit), own, used).max(limit / LEAST) & !(PAGE_SIZE as u64 - 1);
        let engine = self.engine;
        let folded =
            (engine.counts.stored.load(Relaxed) + engine.counts.aside.load(Relaxed)) * PAGE_SIZE as u64;
        let mapped = engine.counts.managed.load(Relaxed) + engine.tables.young.bytes();
        let kept = engine.options.group_limit.load(Relaxed) != u64::MAX;
        let left = |used: u64| kept_of(limit).saturating_sub(used);
        let keep = if kept {
            let in_all = used + folded;
            in_all >= limit / FORGOTTEN && left(in_all) < 2 * NEAR
        } else {
            let may_be = used >= limit / MAY_BE_USED && mapped + used.saturating_sub(own) >= limit / USED;
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
        self.watch.pressed = keep && own >= mine.min(own + left(self.watch.held.firm)) / 100 * PRESSING;
    }

    /// Looks what the group has. Returns what the process itself has, bytes.
    fn count_held(&mut self) -> u64 {
        // Where it cannot be told, nothing is kept to.
        let own = self.anonymous().unwrap_or(0) * PAGE_SIZE as u64;
        let held = self.watch.group.as_ref().and_then(Group::held);
        self.watch.held = held.unwrap_or(Held { firm: own, mapped: 0 });
        own
    }

    /// The room in the group by the last look; no bounds where the limit is not the group's.
    pub(crate) fn room_in_group(&self) -> GroupRoom {
        let Some(Group { limit, .. }) = self.watch.group else { return GroupRoom::UNBOUNDED };
        let room = kept_of(limit).saturating_sub(self.watch.held.firm);
        let part = |room: u64| granted_of(room, limit, self.watch.processes) / PAGE_SIZE as u64;
        let unseen = (limit - kept_of(limit)) / UNSEEN;
        GroupRoom { all: room / PAGE_SIZE as u64, part: part(room), least: part(room.max(unseen)) }
    }

    /// How long it takes at least until the group's limit has to be kept; `None` where there is none, where none is to be kept, and where it is: then the room below it is
    /// counted page by page.
    pub(crate) fn group_pause(&self) -> Option<Nanos> {
        let group =
            self.watch.group.as_ref().filter(|_| !self.engine.room.is_kept() && self.keeps_limits())?;
        let left = begins_at(group.limit).saturating_sub(self.watch.used());
        let filling = FILLING * self.watch.processes.clamp(1, self.engine.helpers.cpus() as u64);
        Some(Nanos(left / filling).max(SHORTEST))
    }

    /// Whether the group's limit has to be kept from now on, by one look at what the group has.
    fn group_comes_near(&mut self) -> bool {
        self.count_held();
        self.watch.group.as_ref().is_some_and(|group| self.watch.used() >= begins_at(group.limit))
    }

    /// Sleeps until a pass is due, somebody rings, or the group's limit has to be kept. Parked.
    pub(crate) fn sleep(&mut self, bell: u32) {
        let mut left = self.tick();
        loop {
            let until_near = self.group_pause();
            let pause = until_near.map_or(left, |pause| pause.min(left));
            thread::sleep_on(&self.engine.agents.bell, bell, pause);
            left = Nanos(left.0 - pause.0);
            if left == Nanos(0)
                || self.engine.agents.bell.load(Acquire) != bell
                || until_near.is_some() && self.group_comes_near()
            {
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
        assert_eq!(share_of(100, 30, 80), 50, "what the others leave");
        assert_eq!(share_of(100, 30, 100), 30);
        // Eight of twenty each, for a hundred: they come to a hundred, and stay.
        let each = share_of(100, 20, 160);
        assert_eq!(each, 12);
        assert_eq!(share_of(100, each, 8 * each), 100 - 7 * each);
        assert_eq!(share_of(100, 0, 200), 0);
        // Charged to another group.
        assert_eq!(share_of(100, 30, 10), 120);
    }

    #[test]
    fn several_processes_are_granted_together_what_there_is_and_little_of_it_unseen() {
        let (limit, room) = (160 * MIB, 20 * MIB);
        assert_eq!(granted_of(room, limit, 1), room);
        assert_eq!(granted_of(room, limit, 0), room, "none is seen");
        for processes in [2, 4, 10, 16, 100] {
            for room in [0, 10 * MIB, 20 * MIB, 64 * MIB] {
                let each = granted_of(room, limit, processes);
                assert!(processes * each <= room);
                assert!((processes - 1) * each <= 8 * MIB, "half of the margin");
            }
        }
        assert_eq!(granted_of(MIB, limit, 500), GRANTED, "there is some, and not all of them grow");
        assert_eq!(granted_of(400 * MIB, 800 * MIB, 6), 10 * MIB);
    }
}
