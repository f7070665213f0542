//! Keeping the limit: measuring what is resident, and evicting in the order of the hand. Background thread only.

use crate::control::bump;
use crate::engine::Phase;
use crate::evict::demote::MOST_WHOLE;
use crate::evict::set_aside;
use crate::evict::worker::Worker;
use crate::gauge::Gauge;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::Extent;
use crate::tables::space;
use crate::text::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// The part of what may be resident that is kept free, and the part that is evicted at once: one in so many.
const RESERVE: u64 = 32;

const BATCH: u64 = 256;

/// The part of the limit that may be stored as it is, on its way below memory: one in so many.
const WHOLE: u64 = 64;

/// The part of the limit by which less is stored in memory after some of it went below, since nothing else was to be had.
const SINK: u64 = 16;

/// What the program has above what cannot be evicted: a part of that, or of the limit where it is more, one in so many.
const FLOOR: u64 = 8;

/// How often it is tried whether less is left now that cannot be evicted, and how much less: one part in so many.
const RETRY_EVERY: Nanos = Nanos::from_secs(1);

const RETRY_PART: u64 = 8;

/// Rounds of the hand that spare what was used, and rounds before somebody is let through.
const SPARING: usize = 2;

const ROUNDS: usize = 3;

/// How often it is seen to that the kernel reports first touches of all managed memory, where that could not be had at once.
const ARM_EVERY: Nanos = Nanos::from_millis(250);

/// How much room there is below a limit, and how much of it the program may take before that is measured again, pages.
struct Measured {
    limit: u64,
    room: u64,
    granted: u64,
}

impl Worker {
    /// Whether a limit is kept if there is one.
    pub(crate) fn keeps_limits(&self) -> bool {
        self.eviction.daemon.is_none()
            && self.recording.is_none()
            && self.engine.control().paused.load(Relaxed) == 0
            && matches!(self.engine.phase(), Phase::Starting | Phase::Running)
    }

    /// Pages that may be resident; `None` where there is no limit to keep.
    fn limit_to_keep(&self) -> Option<u64> {
        let kept = self.engine.is_limited() && self.keeps_limits();
        kept.then_some(self.engine.limit() / PAGE_SIZE as u64)
    }

    /// Begins to keep a limit, or ceases to.
    pub(crate) fn look_at_limit(&mut self) {
        let keep = self.limit_to_keep().is_some();
        if keep != self.engine.room.is_kept() {
            self.eviction.hand.base = 0;
            self.engine.room.keep(keep);
            let _ = thread::set_scheduling(self.scheduling());
            self.eviction.hand.armed_at = Nanos(0);
        }
        if !keep {
            self.release();
        } else if self.now.since(self.eviction.hand.armed_at) >= ARM_EVERY {
            self.eviction.hand.armed_at = self.now;
            self.engine.space().all().for_each(|extent| self.arm_managed(extent));
        }
    }

    /// Anonymous memory of the process, pages.
    pub(crate) fn anonymous(&self) -> Option<u64> {
        let [_, resident, shared] = self.engine.link.gauges.read(Gauge::Memory)?;
        self.engine
            .control()
            .anonymous_bytes
            .store(resident.saturating_sub(shared) * PAGE_SIZE as u64, Relaxed);
        Some(resident.saturating_sub(shared))
    }

    /// What may be resident, pages, as far as parts of it go: the limit, or more where that cannot be kept. A program whose limit is a part of what it cannot go
    /// without would wait for a whole round of the hand for every few pages.
    fn kept_to(&self, limit: u64) -> u64 {
        limit.max(self.eviction.hand.base)
    }

    /// Looks how much room there is and lets that much come. `None` where there is no limit to keep any more.
    fn measure(&mut self) -> Option<Measured> {
        let taken = self.engine.room.taken();
        // Others fill the group's.
        self.look_at_group();
        let limit = self.limit_to_keep()?;
        // Where it cannot be told, nobody waits.
        let anonymous = self.anonymous().unwrap_or(0);
        self.eviction.hand.base = self.eviction.hand.base.min(anonymous);
        let least = self.kept_to(limit) / FLOOR;
        if self.eviction.hand.base + least > limit
            && self.now.since(self.eviction.hand.base_at) >= RETRY_EVERY
        {
            self.eviction.hand.base_at = self.now;
            self.eviction.hand.base -=
                ((self.eviction.hand.base + least - limit) / RETRY_PART).min(self.eviction.hand.base);
        }
        let in_group = self.room_in_group();
        let below = limit.saturating_sub(anonymous);
        let above = (self.eviction.hand.base + least).saturating_sub(anonymous);
        let room = below.min(in_group.all).max(above);
        let granted = below.min(in_group.part).max(above.min(in_group.least));
        self.engine.room.grant(taken, granted, (self.kept_to(limit) / RESERVE / 2).min(granted / 2));
        Some(Measured { limit, room, granted })
    }

    /// Lets everybody who waits try again, and counts for how long they have waited.
    pub(crate) fn release(&mut self) {
        let away = self.engine.room.turned_away();
        let before = core::mem::replace(&mut self.eviction.hand.released, away);
        if away.threads == before.threads {
            return;
        }
        let (threads, now) = (away.threads - before.threads, time::now().0);
        let waited = threads.saturating_mul(now).saturating_sub(away.since.wrapping_sub(before.since));
        bump(&self.engine.control().limit_waits, threads);
        bump(&self.engine.control().limit_wait_ns, waited);
        self.engine.wake_everybody(self.kernel);
    }

    /// Does what may wait for a lock of the program's. A thread that has it may be about to wait for room, as its stack may be folded memory: nobody does meanwhile.
    pub(crate) fn with_room_for_all(&mut self, work: impl FnOnce(&mut Worker)) {
        let limited = self.limit_to_keep().is_some();
        if limited {
            self.engine.room.grant(self.engine.room.taken(), u64::MAX / 2, 0);
            self.release();
        }
        work(self);
        if limited {
            self.measure();
        }
    }

    /// Evicts until there is as much room below the limit as there should be. Returns whether there is more to do at once.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.limit_to_keep().is_none() {
            return false;
        }
        self.eviction.hand.needs_room = true;
        let more = self.make_room_below_limit();
        self.eviction.hand.needs_room = false;
        more
    }

    fn make_room_below_limit(&mut self) -> bool {
        let slice_began = self.slice.began;
        let mut extents = None;
        while let Some(Measured { limit, room, granted }) = self.measure() {
            if granted > 0 {
                self.release();
            }
            if room >= self.kept_to(limit) / RESERVE {
                self.eviction.hand.in_vain = 0;
                return false;
            }
            let count = || self.engine.space().all().filter(may_have_any).count();
            let extents = *extents.get_or_insert_with(count);
            let round = self.eviction.hand.in_vain / extents.max(1);
            if round >= ROUNDS {
                self.eviction.hand.in_vain = 0;
                if !self.sink_some(limit / SINK * PAGE_SIZE as u64) {
                    self.give_in(limit);
                    continue;
                }
            } else if self.evict_some(limit, round < SPARING) {
                self.eviction.hand.in_vain = round * extents;
            }
            // However long one step took: others may ask for something.
            self.slice.began = slice_began;
            if self.interrupted() {
                return true;
            }
        }
        false
    }

    /// Nothing more can be evicted now: what is resident is taken as it is, and somebody told.
    fn give_in(&mut self, limit: u64) {
        (self.eviction.hand.base, self.eviction.hand.base_at) = (self.anonymous().unwrap_or(0), self.now);
        if self.eviction.hand.base + self.kept_to(limit) / FLOOR <= limit {
            return;
        }
        bump(&self.engine.control().limit_misses, 1);
        if !core::mem::replace(&mut self.eviction.hand.told, true) {
            let mut line = Line::new();
            let _ = write!(
                line,
                "memfold: process {} cannot be kept at its resident limit of {} MiB: {} MiB of it cannot be evicted, \
                 compressed pages among them; it runs on above the limit",
                memfold_sys::thread::current_pid(),
                (limit * PAGE_SIZE as u64) >> 20,
                (self.eviction.hand.base * PAGE_SIZE as u64) >> 20,
            );
            self.engine.notify(line.as_str());
        }
    }

    /// Evicts a batch from the extent at the hand, or moves the hand on. Returns whether less is resident.
    fn evict_some(&mut self, limit: u64, sparing: bool) -> bool {
        let Some(extent) = self.next_extent() else {
            self.eviction.hand.in_vain += 1;
            return false;
        };
        if extent.base() >= self.eviction.hand.at {
            self.eviction.hand.at = extent.base() + 1;
            self.eviction.hand.gained = false;
            self.eviction.hand.plan = self.plan(extent, sparing);
        }
        let control = self.engine.control();
        let before = control.pages_evicted.load(Relaxed);
        let mut batch = extent.aside_pages();
        if batch.is_empty() && !self.eviction.hand.plan.is_empty() {
            self.spare_locks_in_time();
            batch = self.choose(extent, limit, sparing);
        }
        while !batch.is_empty() && !self.launder(extent, &batch) && self.engine.phase() == Phase::Running {
            self.slice.began = self.now;
        }
        // What does not shrink makes room when it has left.
        self.sink_whole((limit / WHOLE).min(MOST_WHOLE));
        let gone = control.pages_evicted.load(Relaxed) - before;
        self.eviction.hand.gained |= gone > 0;
        if self.eviction.hand.plan.is_empty() {
            self.eviction.hand.at = extent.base() + EXTENT_SIZE;
            self.eviction.hand.in_vain += usize::from(!self.eviction.hand.gained);
        }
        gone > 0
    }

    /// The extent at the hand; after the last comes the first.
    fn next_extent(&mut self) -> Option<&'static Extent> {
        let ahead = self.engine.space().existing(self.eviction.hand.at, space::LIMIT).find(may_have_any);
        if ahead.is_some() {
            return ahead;
        }
        self.eviction.hand.at = 0;
        self.engine.space().all().find(may_have_any)
    }

    /// What is to go of an extent, and what was used there since the last round, which is forgotten.
    fn plan(&mut self, extent: &Extent, sparing: bool) -> PageSet {
        let Some(extent) = extent.try_lock() else { return PageSet::EMPTY };
        let tracks = self.kernel.tracks_writes;
        let Ok(scan) = set_aside::scan(self.kernel, &extent, tracks) else {
            self.watch(&extent);
            return PageSet::EMPTY;
        };
        let managed = scan.present.and(&extent.managed.load());
        extent.present.store(managed.len() as u32, Relaxed);
        let written = if tracks { scan.written } else { PageSet::EMPTY };
        extent.incompressible.remove(&written);
        self.let_dense_go(&extent);
        let used = extent.hot.load().or(&written);
        extent.hot.remove(&managed);
        extent.back_soon.remove(&managed);
        let wanted = managed.minus(&extent.incompressible.load());
        if sparing {
            wanted.minus(&used)
        } else {
            wanted
        }
    }

    /// Sets aside what is to go next of an extent; returns what was.
    fn choose(&mut self, extent: &Extent, limit: u64, sparing: bool) -> PageSet {
        if !sparing {
            let plan = self.eviction.hand.plan;
            self.own(extent, &plan);
        }
        let Some(extent) = extent.try_lock() else {
            self.eviction.hand.plan = PageSet::EMPTY;
            return PageSet::EMPTY;
        };
        let Ok(scan) = set_aside::scan(self.kernel, &extent, false) else {
            self.eviction.hand.plan = PageSet::EMPTY;
            return PageSet::EMPTY;
        };
        let wanted = self.eviction.hand.plan.and(&scan.present);
        let most = (self.kept_to(limit) / BATCH).clamp(16, EXTENT_PAGES as u64) as usize;
        let mut batch = PageSet::EMPTY;
        let mut left = if scan.huge { EXTENT_PAGES } else { most };
        for run in wanted.runs() {
            let part = PageRange::new(run.lo, run.hi.min(run.lo + left));
            batch = batch.or(&part.set());
            left -= part.len();
        }
        self.eviction.hand.plan = wanted.minus(&batch);
        self.set_aside_any(&extent, &batch, scan.huge);
        extent.aside_pages()
    }

    /// Has the kernel report first touches of all managed memory of an extent. Tries its lock.
    fn arm_managed(&self, extent: &Extent) {
        let managed = extent.managed.load();
        if !managed.minus(&extent.armed.load()).is_empty() {
            if let Some(extent) = extent.try_lock() {
                self.arm(&extent, &extent.managed.load());
            }
        }
    }
}

/// Whether pages of it may be in memory as they are, in view or set aside. Where next to all is folded, most extents have none.
fn may_have_any(extent: &&'static Extent) -> bool {
    let all_stored = extent.away.load(Relaxed) as usize == EXTENT_PAGES && extent.staging.load(Relaxed) == 0;
    !all_stored && !extent.managed.load().is_empty()
}
