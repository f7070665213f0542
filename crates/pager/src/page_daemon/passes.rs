//! The passes: what the daemon is told, and what is done of what it says. Background thread only.

use super::{Choice, Known, Policing, HURRY};
use crate::bitmap::PageSet;
use crate::engine::Phase;
use crate::entry::State;
use crate::evict;
use crate::extent::{Extent, Locked};
use crate::passlog::{self, Pass};
use crate::scan::Scan;
use crate::worker::Worker;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_policy::budget::WINDOW;
use memfold_policy::daemon::{Place, Row};
use memfold_policy::replace::Spec;
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
    match mem::map_anonymous(0, len, libc::MAP_NORESERVE) {
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
            self.begin_policing(&spec);
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
            Some(Choice::Age) => self.end_policing(),
            Some(Choice::Daemon(spec)) => {
                if !self.begin_policing(&spec) {
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
        if self.eviction.policing.is_none() {
            return libc::EINVAL as u32;
        }
        self.make_pass(elapsed);
        while self.clear_backlog() {
            self.slice.began = self.now;
        }
        0
    }

    /// What is resident now is the new daemon's; what is away stays so.
    fn begin_policing(&mut self, spec: &Spec) -> bool {
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
        self.eviction.policing = Some(Policing {
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
        });
        true
    }

    /// Pages go by their age again; what is set aside has its probe under way.
    fn end_policing(&mut self) {
        if self.eviction.policing.take().is_none() {
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

    /// Does what is due. Returns whether there is more to do at once.
    pub fn police(&mut self) -> bool {
        let Some(policing) = &self.eviction.policing else { return false };
        let elapsed = self.now.since(policing.last_pass);
        // A pass comes before what is left of the last one: it may find that some of it is wanted again.
        if elapsed.0 + Nanos::from_millis(1).0 >= policing.pause().0 {
            self.make_pass(elapsed.0);
            self.slice.began = self.now;
        }
        self.clear_backlog()
    }

    /// One pass: looks at all pages, asks the daemon, sets aside.
    fn make_pass(&mut self, elapsed: u64) {
        let Some(mut policing) = self.eviction.policing.take() else { return };
        let began = time::now();
        policing.last_pass = self.now;
        let mut resident = 0;
        for extent in self.engine.space().all() {
            if extent.managed.load().is_empty()
                && extent.away.load(Relaxed) == 0
                && extent.number.load(Relaxed) == 0
            {
                continue;
            }
            resident += self.look(&mut policing, extent);
            self.stay_responsive();
        }
        let limit = self.limit_pages();
        policing.row = policing.daemon.pass(limit, elapsed);
        let mut left = 0;
        for extent in self.engine.space().all() {
            left += self.act(&mut policing, extent);
            self.stay_responsive();
        }
        let in_use = policing.daemon.in_use();
        policing.set_pause(in_use, limit);
        self.engine.control().resident_bytes.store((resident - left) as u64 * PAGE_SIZE as u64, Relaxed);
        self.tell_if_too_low(&mut policing, in_use, limit);
        policing.pass.number += 1;
        policing.pass.took = time::now().since(began).0;
        policing.pass.limit = limit as u64;
        self.log_pass(&mut policing);
        self.eviction.policing = Some(policing);
        self.now = time::now();
    }

    /// Tells the daemon what became of the pages of an extent since the last pass. Returns how many are in view.
    fn look(&mut self, policing: &mut Policing, extent: &Extent) -> usize {
        let Some(extent) = extent.try_lock() else { return 0 };
        let number = match extent.number.load(Relaxed) {
            0 => {
                let empty = PageSet::EMPTY;
                policing.extents.push(Known {
                    view: empty,
                    away: empty,
                    stayed: empty,
                    spared: empty,
                    ahead: empty,
                    backlog: empty,
                });
                policing.daemon.grow(policing.extents.len() * EXTENT_PAGES);
                extent.number.store(policing.extents.len() as u32, Relaxed);
                policing.extents.len() - 1
            }
            number => number as usize - 1,
        };
        let (view, written) = self.view(&extent);
        let away = extent.away_pages();
        let view = view.minus(&away);
        let known = &mut policing.extents[number];
        let gone = known.view.or(&known.away).minus(&view.or(&away));
        let fresh = view.or(&away).minus(&known.view.or(&known.away));
        let (asked, whole) = take_asked(&extent, &away);
        policing.pass.faults += asked.minus(&fresh).len() as u64;
        policing.pass.minor_faults += whole.minus(&fresh).len() as u64;
        // What did not shrink came back to stay.
        let back = view.and(&known.away);
        known.ahead = back.minus(&asked).minus(&extent.incompressible.load());
        let seen = view.and(&asked.or(&written).or(&known.stayed)).minus(&known.ahead);
        let touched = fresh.or(&seen);
        known.backlog = known.backlog.minus(&view).minus(&gone);
        known.spared = known.spared.or(&touched).minus(&gone);
        let first = (number * EXTENT_PAGES) as u32;
        gone.pages().for_each(|index| policing.daemon.remove(first + index as u32));
        touched.pages().for_each(|index| policing.daemon.touch(first + index as u32, false));
        known.ahead.pages().for_each(|index| policing.daemon.bring(first + index as u32));
        (known.view, known.away) = (view, away);
        // Whatever is put in place counts as written at first.
        extent.incompressible.remove(&written.minus(&back));
        view.len()
    }

    /// The managed pages of an extent that are present, and those that were written since the last look.
    pub(crate) fn view(&mut self, extent: &Locked) -> (PageSet, PageSet) {
        let tracks = self.kernel.tracks_writes;
        let scan = match evict::scan(self.kernel, extent, tracks) {
            Ok(scan) => Some(scan),
            // Not registered for write tracking yet.
            Err(_) => {
                self.watch(extent);
                evict::scan(self.kernel, extent, false)
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

    /// Sets aside what is no longer active. Returns how many pages left the view.
    fn act(&mut self, policing: &mut Policing, extent: &Extent) -> usize {
        let Some(number) = (extent.number.load(Relaxed) as usize).checked_sub(1) else { return 0 };
        let Some(known) = policing.extents.get_mut(number) else { return 0 };
        let (mut active, mut leave, mut freed) = (PageSet::EMPTY, PageSet::EMPTY, PageSet::EMPTY);
        for index in known.view.or(&known.away).pages() {
            match policing.daemon.place((number * EXTENT_PAGES + index) as u32) {
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
        let left = match extent.try_lock() {
            Some(extent) if !leave.is_empty() => {
                let wanted = leave.minus(&extent.incompressible.load());
                self.set_aside_any(&extent, &wanted, false)
            }
            _ => 0,
        };
        let away = extent.away_pages();
        known.stayed = leave.minus(&away);
        known.view = known.view.minus(&away);
        known.away = known.away.or(&away);
        known.backlog = freed.and(&extent.aside_pages());
        policing.behind |= !known.backlog.is_empty();
        left
    }

    /// Compresses what was freed, as far as the time goes. Returns whether there is more.
    fn clear_backlog(&mut self) -> bool {
        let Some(mut policing) = self.eviction.policing.take() else { return false };
        let mut finished = true;
        if policing.behind {
            for extent in self.engine.space().all() {
                let Some(number) = (extent.number.load(Relaxed) as usize).checked_sub(1) else { continue };
                let Some(known) = policing.extents.get_mut(number) else { continue };
                if known.backlog.is_empty() {
                    continue;
                }
                if !self.launder(extent, &known.backlog) {
                    finished = false;
                    break;
                }
                known.backlog = PageSet::EMPTY;
            }
            policing.behind = !finished;
        }
        self.eviction.policing = Some(policing);
        !finished && self.engine.phase() == Phase::Running
    }

    fn log_pass(&mut self, policing: &mut Policing) {
        let control = self.engine.control();
        let since = |last: &mut u64, now: u64| now.wrapping_sub(core::mem::replace(last, now));
        policing.pass.at = self.now.0.saturating_sub(control.started_ns.load(Relaxed));
        policing.pass.restored = since(&mut policing.restored, control.pages_restored.load(Relaxed));
        policing.pass.compressed = since(&mut policing.compressed, control.pages_evicted.load(Relaxed));
        policing.pass.backlog = policing.extents.iter().map(|known| known.backlog.len() as u64).sum();
        control.passes.store(policing.pass.number, Relaxed);
        if !self.engine.options.log.is_empty() {
            let mut buffer = [0; 512];
            passlog::append(self.engine.options.log.read(&mut buffer), &policing.pass, &policing.row);
        }
        (policing.pass.faults, policing.pass.minor_faults) = (0, 0);
    }

    /// Says once that the limit is below what the program needs.
    fn tell_if_too_low(&mut self, policing: &mut Policing, in_use: usize, limit: usize) {
        let waits = self.budgets.stall.waited(self.now.0) / (WINDOW / 1_000_000) > TOO_LOW;
        if in_use <= limit + limit / 16 && !waits {
            policing.missed_since = None;
            return;
        }
        let since = *policing.missed_since.get_or_insert(self.now);
        if policing.told || self.now.since(since) < MISSED {
            return;
        }
        policing.told = true;
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
