//! The passes: what the daemon is told, and what is done of what it says. Background thread only.

use super::{Choice, DaemonPolicy, Known, Making, HURRY};
use crate::engine::Phase;
use crate::evict::passlog::{self, Pass};
use crate::evict::round::{self, Due, Policy};
use crate::evict::scan::Scan;
use crate::evict::set_aside;
use crate::evict::worker::{Round, Worker};
use crate::tables::bitmap::PageSet;
use crate::tables::entry::State;
use crate::tables::extent::{Extent, Locked};
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_policy::budget::WINDOW;
use memfold_policy::daemon::{Place, Row};
use memfold_policy::spec::Spec;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{mem, EXTENT_PAGES, PAGE_SIZE};

/// Memory that a policy takes for one page at most; more is asked for before it is made.
const BYTES_A_PAGE: usize = 128;

/// How long the limit must be missed before somebody is told.
const MISSED: Nanos = Nanos::from_secs(10);

/// Share of the time that threads wait at which the limit counts as too low, in millionths.
const TOO_LOW: u64 = 250_000;

/// The pages that threads have waited for, and got, since this was last asked, and those of them that were whole. Those that
/// were `away` a moment ago are still on their way.
fn take_asked(extent: &Extent, away: &PageSet) -> (PageSet, PageSet) {
    let asked = extent.asked.load().minus(away);
    // What is noted of these pages from now on is another touch.
    extent.asked.remove(&asked);
    let whole = extent.asked_whole.load().and(&asked);
    extent.asked_whole.remove(&whole);
    (asked, whole)
}

/// Whether there is room for the tables of so many extents.
fn has_room(extents: usize) -> bool {
    let len = (extents * EXTENT_PAGES).next_power_of_two() * BYTES_A_PAGE;
    match mem::map_own(len, libc::MAP_NORESERVE) {
        // SAFETY: our own mapping, never used.
        Ok(base) => unsafe { mem::munmap(base, len) }.is_ok(),
        Err(_) => false,
    }
}

impl Worker {
    /// Takes up the policy that the engine was given, in a forked child that of the parent.
    pub fn take_up_policy(&mut self) {
        let mut buffer = [0; 128];
        let engine = self.engine;
        if let Some(Choice::Daemon(spec)) = Choice::parse(engine.options.policy.read(&mut buffer)) {
            self.begin_daemon(&spec);
        }
    }

    /// Evicts by the policy that was asked for. Returns 0 or an error number.
    pub fn change_policy(&mut self) -> u32 {
        let mut buffer = [0; 512];
        let text = self.engine.control().request.read(&mut buffer);
        if self.recording.is_some() {
            return libc::EBUSY as u32;
        }
        if text.len() > crate::SharedText::<16>::MOST {
            return libc::E2BIG as u32;
        }
        match Choice::parse(text) {
            None => return libc::EINVAL as u32,
            Some(Choice::Age) => self.end_daemon(),
            Some(Choice::Daemon(_)) if !self.engine.has_own_heap() => return libc::ENOTSUP as u32,
            Some(Choice::Daemon(spec)) => {
                if !self.begin_daemon(&spec) {
                    return libc::ENOMEM as u32;
                }
            }
        }
        self.engine.options.policy.set(text);
        self.engine.control().policy.set(text);
        0
    }

    /// Logs passes to the file that was asked for.
    pub fn change_log(&mut self) -> u32 {
        let mut buffer = [0; 512];
        let path = self.engine.control().request.read(&mut buffer);
        self.engine.options.log.set(path);
        self.engine.control().log.set(path);
        0
    }

    /// Makes a pass at once, `elapsed` ns after the last one.
    pub fn pass_on_request(&mut self, elapsed: u64) -> u32 {
        let Some(mut daemon) = self.eviction.daemon.take() else { return libc::EINVAL as u32 };
        daemon.making = Making { asked: Some(elapsed), ..Making::default() };
        while self.evict_by(&mut daemon) {
            self.slice.began = self.now;
            // What is left of it, and no other.
            daemon.making.passed = true;
        }
        self.eviction.daemon = Some(daemon);
        0
    }

    /// What is resident now is the new daemon's; what is away stays so.
    fn begin_daemon(&mut self, spec: &Spec) -> bool {
        let extents: Vec<&Extent> = self.engine.space().all().collect();
        if !has_room(extents.len().max(64)) {
            self.engine.notify("memfold: no memory for the tables of the policy; pages go by their age");
            return false;
        }
        let Some(daemon) = spec.make_daemon(self.limit_pages(), extents.len().max(1) * EXTENT_PAGES) else {
            return false;
        };
        extents.iter().for_each(|extent| extent.number.store(0, Relaxed));
        let control = self.engine.control();
        self.eviction.daemon = Some(DaemonPolicy {
            daemon,
            extents: Vec::new(),
            last_pass: self.now,
            pause: HURRY,
            in_use: 0,
            behind: false,
            pass: Pass::default(),
            row: Row::default(),
            restored: control.pages_restored.load(Relaxed),
            compressed: control.pages_evicted.load(Relaxed),
            missed_since: None,
            told: false,
            making: Making::default(),
        });
        true
    }

    /// Pages go by their age again; what is set aside has its probe under way.
    fn end_daemon(&mut self) {
        if self.eviction.daemon.take().is_none() {
            return;
        }
        // What rested did so by ages that are forgotten.
        self.eviction.paced_by = 0;
        for extent in self.engine.space().all() {
            let Some(mut extent) = extent.try_lock() else { continue };
            let aside = extent.entries().map_or(0, |entries| {
                entries.iter().filter(|entry| entry.load().state() == State::Aside).count()
            });
            extent.age().forget();
            if aside > 0 {
                extent.probed_pages.store(aside as u32, Relaxed);
                extent.age().set_aside(self.now.0);
            }
        }
    }

    fn limit_pages(&self) -> usize {
        let limit = self.engine.limit().min(self.share());
        usize::try_from(limit / PAGE_SIZE as u64).unwrap_or(usize::MAX).clamp(1, 1 << 40)
    }

    /// The managed pages of an extent that are present, and those that were written since the last look.
    pub(crate) fn view(&mut self, extent: &Locked) -> (PageSet, PageSet) {
        let tracks = self.kernel.tracks_writes;
        let scan = match set_aside::scan(self.kernel, extent, tracks) {
            Ok(scan) => Some(scan),
            // Not registered for write tracking yet.
            Err(_) => {
                self.watch(extent);
                set_aside::scan(self.kernel, extent, false)
                    .ok()
                    .map(|scan| Scan { written: PageSet::EMPTY, ..scan })
            }
        };
        let managed = extent.managed.load();
        scan.map_or((PageSet::EMPTY, PageSet::EMPTY), |scan| {
            let written = if tracks { scan.written } else { PageSet::EMPTY };
            (scan.present.and(&managed), written)
        })
    }

    fn log_pass(&mut self, daemon: &mut DaemonPolicy) {
        let control = self.engine.control();
        let since = |last: &mut u64, now: u64| now.wrapping_sub(core::mem::replace(last, now));
        daemon.pass.at = self.now.0.saturating_sub(control.started_ns.load(Relaxed));
        daemon.pass.restored = since(&mut daemon.restored, control.pages_restored.load(Relaxed));
        daemon.pass.compressed = since(&mut daemon.compressed, control.pages_evicted.load(Relaxed));
        daemon.pass.backlog = daemon.extents.iter().map(|known| known.backlog.len() as u64).sum();
        control.passes.store(daemon.pass.number, Relaxed);
        if !self.engine.options.log.is_empty() {
            let mut buffer = [0; 512];
            passlog::append(self.engine.options.log.read(&mut buffer), &daemon.pass, &daemon.row);
        }
        (daemon.pass.faults, daemon.pass.minor_faults) = (0, 0);
    }

    /// Says once that the limit is below what the program needs.
    fn tell_if_too_low(&mut self, daemon: &mut DaemonPolicy, in_use: usize, limit: usize) {
        // Who waits far below the limit waits for something else.
        let waits = self.budgets.stall.waited(self.now.0) / (WINDOW / 1_000_000) > TOO_LOW;
        let is_too_low = in_use > if waits { limit - limit / 4 } else { limit + limit / 16 };
        if !is_too_low {
            daemon.missed_since = None;
            return;
        }
        let since = *daemon.missed_since.get_or_insert(self.now);
        if daemon.told || self.now.since(since) < MISSED {
            return;
        }
        daemon.told = true;
        let mut line = crate::text::Line::new();
        let mib = |pages: usize| pages * PAGE_SIZE / (1 << 20);
        let _ = write!(
            line,
            "memfold: the resident limit of {} MiB is below what this program keeps in use ({} MiB now): it runs on, \
             slowly, and loses nothing; `memfold ctl {} set resident_limit` raises it",
            mib(limit),
            mib(in_use),
            memfold_sys::thread::current_pid()
        );
        self.engine.notify(line.as_str());
    }
}

impl DaemonPolicy {
    /// Tells the daemon what became of the pages of an extent since the last pass. Returns how many are in view.
    fn note(&mut self, worker: &mut Worker, extent: &Locked) -> usize {
        let number = match extent.number.load(Relaxed) {
            0 => {
                let empty = PageSet::EMPTY;
                self.extents.push(Known {
                    view: empty,
                    away: empty,
                    stayed: empty,
                    spared: empty,
                    ahead: empty,
                    backlog: empty,
                });
                self.daemon.grow(self.extents.len() * EXTENT_PAGES);
                extent.number.store(self.extents.len() as u32, Relaxed);
                self.extents.len() - 1
            }
            number => number as usize - 1,
        };
        let (view, written) = worker.view(extent);
        let away = extent.away_pages();
        let view = view.minus(&away);
        let known = &mut self.extents[number];
        let gone = known.view.or(&known.away).minus(&view.or(&away));
        let fresh = view.or(&away).minus(&known.view.or(&known.away));
        let (asked, whole) = take_asked(extent, &away);
        self.pass.faults += asked.minus(&fresh).len() as u64;
        self.pass.minor_faults += whole.minus(&fresh).len() as u64;
        // What did not shrink came back to stay.
        let back = view.and(&known.away);
        known.ahead = back.minus(&asked).minus(&extent.incompressible.load());
        let seen = view.and(&asked.or(&written).or(&known.stayed)).minus(&known.ahead);
        let touched = fresh.or(&seen);
        known.backlog = known.backlog.minus(&view).minus(&gone);
        known.spared = known.spared.or(&touched).minus(&gone);
        let first = (number * EXTENT_PAGES) as u32;
        gone.pages().for_each(|index| self.daemon.remove(first + index as u32));
        touched.pages().for_each(|index| self.daemon.touch(first + index as u32, false));
        known.ahead.pages().for_each(|index| self.daemon.bring(first + index as u32));
        (known.view, known.away) = (view, away);
        // Whatever is put in place counts as written at first.
        extent.incompressible.remove(&written.minus(&back));
        view.len()
    }

    /// The extent's number, once it has one.
    fn number_of(&self, extent: &Extent) -> Option<usize> {
        let number = (extent.number.load(Relaxed) as usize).checked_sub(1)?;
        (number < self.extents.len()).then_some(number)
    }

    /// Notes what became of the pages of the extent at hand that were to leave.
    fn note_left(&mut self, extent: &Extent, left: usize) {
        self.making.left += left;
        let away = extent.away_pages();
        let known = &mut self.extents[self.making.number];
        known.stayed = self.making.leave.minus(&away);
        known.view = known.view.minus(&away);
        known.away = known.away.or(&away);
        known.backlog = self.making.freed.and(&extent.aside_pages());
        self.behind |= !known.backlog.is_empty();
    }

    /// What is no longer active of an extent, and of that what was freed.
    fn leavers(&mut self, number: usize) -> (PageSet, PageSet) {
        let (mut active, mut leave, mut freed) = (PageSet::EMPTY, PageSet::EMPTY, PageSet::EMPTY);
        let known = &mut self.extents[number];
        for index in known.view.or(&known.away).pages() {
            match self.daemon.place((number * EXTENT_PAGES + index) as u32) {
                Place::Active => active.insert(index),
                Place::Inactive | Place::Laundry => leave.insert(index),
                Place::Free | Place::Out => {
                    leave.insert(index);
                    freed.insert(index);
                }
            }
        }
        known.spared = known.spared.minus(&active).minus(&freed);
        let leave = leave.and(&known.view).minus(&known.spared).minus(&known.ahead.minus(&freed));
        (leave, freed)
    }
}

impl Policy for DaemonPolicy {
    const KEEPS_LIMIT: bool = true;

    fn begin(&mut self, worker: &mut Worker) -> Option<Round> {
        let asked = self.making.asked.take();
        let elapsed = asked.unwrap_or(worker.now.since(self.last_pass).0);
        // A pass comes before what is left of the last one: it may find that some of it is wanted again.
        let due = asked.is_some() || elapsed + Nanos::from_millis(1).0 >= self.pause().0;
        if due && !core::mem::take(&mut self.making.passed) {
            self.making = Making { elapsed, passed: true, began: time::now(), ..Making::default() };
            self.last_pass = worker.now;
            return Some(Round { all: true, sees_first: true, whole: true, ..Round::default() });
        }
        self.making.passed = false;
        self.behind.then_some(Round { all: true, ..Round::default() })
    }

    fn see(&mut self, worker: &mut Worker, extent: &Extent) {
        if extent.managed.load().is_empty()
            && extent.away.load(Relaxed) == 0
            && extent.number.load(Relaxed) == 0
        {
            return;
        }
        if let Some(extent) = extent.try_lock() {
            self.making.resident += self.note(worker, &extent);
        }
    }

    fn decide(&mut self, worker: &mut Worker) {
        self.row = self.daemon.pass(worker.limit_pages(), self.making.elapsed);
    }

    fn due<'e>(&mut self, _: &mut Worker, extent: &'e Extent) -> Due<'e> {
        let Some(number) = self.number_of(extent) else { return Due::Empty };
        if !self.making.passed {
            let backlog = self.extents[number].backlog;
            return if backlog.is_empty() { Due::Empty } else { Due::Launder(backlog) };
        }
        let (leave, freed) = self.leavers(number);
        (self.making.number, self.making.leave, self.making.freed) = (number, leave, freed);
        match extent.try_lock() {
            Some(locked) if !leave.is_empty() => Due::SetAside(locked),
            _ => {
                self.note_left(extent, 0);
                Due::Nothing
            }
        }
    }

    fn choose(&mut self, worker: &mut Worker, extent: &mut Locked) -> round::Choice {
        worker.let_dense_go(extent);
        let pages = self.making.leave.minus(&extent.incompressible.load());
        round::Choice { pages: Some(pages), huge: false, refused: PageSet::EMPTY }
    }

    fn set_aside(&mut self, worker: &mut Worker, extent: &mut Locked, choice: &round::Choice) -> usize {
        let left = choice.pages.map_or(0, |pages| worker.set_aside_any(extent, &pages, choice.huge));
        self.note_left(extent, left);
        left
    }

    fn laundered(&mut self, _: &mut Worker, extent: &Extent) -> bool {
        if let Some(number) = self.number_of(extent) {
            self.extents[number].backlog = PageSet::EMPTY;
        }
        false
    }

    fn end(&mut self, worker: &mut Worker, round: Round) -> bool {
        if !round.whole {
            self.behind = round.at != 0 || round.more;
            return self.behind && worker.engine.phase() == Phase::Running;
        }
        let limit = worker.limit_pages();
        let in_use = self.daemon.in_use();
        self.set_pause(in_use, limit);
        let resident = self.making.resident.saturating_sub(self.making.left) as u64 * PAGE_SIZE as u64;
        worker.engine.control().resident_bytes.store(resident, Relaxed);
        worker.tell_if_too_low(self, in_use, limit);
        self.pass.number += 1;
        self.pass.took = time::now().since(self.making.began).0;
        self.pass.limit = limit as u64;
        worker.log_pass(self);
        worker.now = time::now();
        false
    }
}
