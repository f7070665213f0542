//! The fault thread: a program thread touched an absent page and sleeps until this thread puts it there.
//!
//! One thread serves all faults of the process, in the order in which the kernel reports them, and learns from the same
//! queue of mappings that were changed past libc.
//!
//! Invariants: between reading a message and waking the sleeper it allocates nothing, takes no lock, waits for nobody, and
//! touches only memory that is never evicted. A message that it drops is one whose sleeper somebody else wakes.

use crate::config::Setting;
use crate::control::{bump, ControlPage};
use crate::engine::{Engine, Phase};
use crate::fault::beside;
use crate::fault::drops::Drops;
use crate::fault::events;
use crate::fault::follow::Follower;
use crate::fault::foreseen;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::recall::{Recall, Unasked};
use crate::fault::restore::{Marks, Restorer, AT_ONCE};
use crate::fault::run::MAX_WINDOW;
use crate::fault::stamps::Stamps;
use crate::fault::steps::Steps;
use crate::fault::waits::Waits;
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::sabotage::{fault_point, linger, Bug};
use crate::tables::bitmap::PageRange;
use crate::tables::entry::{Entry, State};
use crate::tables::extent::{Extent, WALKED};
use crate::tier::below::Asker;
use core::sync::atomic::Ordering::*;
use memfold_policy::clusters::Clusters;
use memfold_policy::walk::{Reach, Walks, Way};
use memfold_sys::thread::{self, Backoff};
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::{self, Event, Modes};
use memfold_sys::{mem, Errno, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// How many pages helpers are asked for at once.
const AHEAD: usize = 64;
/// Ahead of a sequential reader they are asked for so many pages for each of its window.
const AHEAD_A_PAGE: usize = 8;
/// Of an extent that is only foreseen one page in so many is left out: its touch tells that the walk came there.
const MARK: usize = 128;

/// The thread's entry; `arg` is the engine's address.
pub extern "C" fn main(arg: usize) {
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*(arg as *const Engine) };
    thread::set_name(thread::agent_name::FAULT);
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(thread::CAP_SYS_NICE);
    let restorer = engine.kernel().map(|kernel| patiently(|| Restorer::new(engine, kernel)));
    let Some(Ok(restorer)) = restorer else {
        engine.fail_hard("memfold: no memory for the fault thread");
    };
    Service {
        engine,
        kernel: restorer.kernel,
        restorer,
        follower: Follower::new(),
        waits: Waits::new(),
        walks: Walks::new(),
        way: Way::new(),
        foresight: foreseen::Memory::new().ok(),
        recall: Recall::new(),
        clusters: Clusters::new(),
        steps: Steps::new(),
        drops: Drops::new(),
        read_at: Nanos(0),
        backoff: Backoff::new(),
        stamps: None,
        ended: false,
        zeros: [0; PAGE_SIZE],
    }
    .run();
}

struct Service {
    engine: &'static Engine,
    kernel: &'static Kernel,
    restorer: Restorer,
    follower: Follower,
    waits: Waits,
    walks: Walks,
    way: Way,
    /// `None` where there is no memory for it.
    foresight: Option<foreseen::Memory>,
    recall: Recall,
    clusters: Clusters,
    steps: Steps,
    drops: Drops,
    /// When the messages at hand were read.
    read_at: Nanos,
    backoff: Backoff,
    /// Of the touch at hand, while somebody measures them.
    stamps: Option<Stamps>,
    /// The doorbell was rung.
    ended: bool,
    zeros: [u8; PAGE_SIZE],
}

impl Service {
    fn run(mut self) {
        while !self.ended {
            if self.engine.children.are_owed() {
                self.engine.traffic.turns.begin_read();
                self.engine.children.go_on(self.engine);
                self.engine.traffic.turns.end_read();
                if !self.kernel.uffd.has_message() {
                    continue;
                }
            }
            if self.recall.is_due(self.engine) {
                self.go_on_with_recall();
                if !self.kernel.uffd.has_message() {
                    continue;
                }
            }
            let idle = self.engine.stamps.is_wanted().then(time::now);
            if !self.wait() {
                continue;
            }
            if fault_point!(ReportNotAwaited: false, else !uffd::touch_waits(&self.kernel.uffd_info)) {
                linger(Bug::ReportNotAwaited);
            }
            self.read_at = time::now();
            self.engine.traffic.turns.begin_read();
            // One message at a time: reading the report of a change lets the change go on, and touches that were read
            // with it would be served as if it had not happened.
            match events::read(self.engine, self.kernel) {
                Ok(message) => {
                    self.stamps = idle.map(|idle| self.begin_stamps(idle));
                    self.engine.flush_deferred();
                    self.handle(message);
                }
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                // The descriptor is gone, and with it every evicted page.
                // No descriptor for a forked child's, or no memory for it: the report stays where it is, and touches are read before it.
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => time::sleep(Nanos::from_millis(1)),
                Err(_) => self.engine.fail_hard("memfold: the userfaultfd of the pager was closed"),
            }
            self.engine.traffic.turns.end_read();
        }
    }

    /// Waits for a message. False if it is time for something else, which is done.
    fn wait(&mut self) -> bool {
        let drops = self.drops.pause();
        let due = || self.foresight.as_ref().and_then(foreseen::Memory::pause);
        let foreseen = fault_point!(DueNotAwaited: due(), else None);
        let Some(pause) = drops.into_iter().chain(foreseen).min() else {
            self.kernel.uffd.wait();
            return true;
        };
        if self.kernel.uffd.wait_for(pause) {
            return true;
        }
        if drops == Some(pause) {
            self.engine.traffic.turns.begin_read();
            self.drops.look(self.engine, self.kernel);
            self.engine.traffic.turns.end_read();
        }
        if let Some(foresight) = &mut self.foresight {
            foresight.look(self.engine);
        }
        false
    }

    fn go_on_with_recall(&mut self) {
        self.engine.traffic.turns.begin_read();
        self.recall.go_on(Unasked::new(self.engine, self.kernel, &mut self.restorer, &mut self.waits));
        self.engine.traffic.turns.end_read();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Fault { page, write, tid } => {
                self.engine.traffic.turns.serve_touch();
                self.fault(page, write, tid);
            }
            other => {
                events::changed_past_libc(self.engine, self.kernel, &mut self.steps, other);
                self.drops.note(self.engine, other);
            }
        }
    }

    fn fault(&mut self, page: usize, write: bool, tid: u32) {
        let control = self.engine.control();
        if page == self.engine.link.doorbell.load(Acquire) {
            // Nothing is away any more, and who rang waits for its page. Without memory for it, the bell rings again.
            self.ended = matches!(self.kernel.uffd.zero(page, PAGE_SIZE).error, None | Some(Errno::EEXIST));
            self.kernel.uffd.wake(page, PAGE_SIZE);
            return;
        }
        let extent = self.engine.space().find(page);
        if extent.is_some_and(|extent| self.engine.must_wait_for_room(extent, page, tid, self.read_at)) {
            return;
        }
        let mut looked = false;
        if let Some(extent) = extent {
            looked = note(extent, (page - extent.base()) / PAGE_SIZE);
        }
        self.backoff = Backoff::new();
        // While the thread is asleep, and what is said of it stands still.
        let found = self.waits.found(self.engine, tid, page, self.read_at);
        self.charge_late(control, found.late, found.late_ns);
        self.stamp(|stamps| &mut stamps.found);
        self.restorer.marks = self.stamps.map(|_| Marks::default());
        loop {
            let outcome = match extent {
                Some(extent) => {
                    let index = (page - extent.base()) / PAGE_SIZE;
                    let began = time::now();
                    let outcome = self.restorer.restore(extent, PageRange::one(index), Reason::Fault);
                    if let Outcome::Done { first, pages } = outcome {
                        let came = PageRange::from(first, pages).indices().contains(&index);
                        if fault_point!(HalfTakenForAll: !came, else false) {
                            // Of a huge page that came back in part: the page is not there yet.
                            self.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
                            continue;
                        }
                        // Before the wake-up: the program's thread may run in our place from then on.
                        let ended = time::now();
                        self.waits.woken(tid, ended);
                        self.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
                        self.stamp_restored(ended);
                        control.restore_ns.record(ended.since(began).0);
                        let waited = ended.since(self.read_at).0 + found.outside;
                        self.charge_wait(control, waited);
                        if looked {
                            // After the whole, for who reads both.
                            self.engine
                                .latency
                                .stall_looking
                                .store(self.engine.latency.stall_looking.load(Relaxed) + waited, Release);
                        }
                        self.follower.watch(ended.since(began));
                        let reach = self.reach(extent, ended);
                        extent.last_restore.store(ended.0, Relaxed);
                        if !looked {
                            extent.last_return.store(ended.0, Relaxed);
                        }
                        let behind = window(self.engine, extent, index).saturating_sub(pages);
                        if let Some(foresight) = self.foresight.as_mut().filter(|_| !looked) {
                            foresight.touched(self.engine, page, ended);
                        }
                        if self.go_through(extent, reach, ended) {
                            // They begin with what comes next, while the thread that was woken runs.
                        } else if reach == Reach::Page {
                            // First, so that they begin at once.
                            self.look_ahead(extent, first, pages + behind);
                            self.bring_rest(extent, first + pages, behind);
                            if looked {
                                self.bring_beside(extent, index);
                            }
                        } else {
                            self.bring_walked(extent, first + pages, reach);
                        }
                    }
                    outcome
                }
                None => Outcome::Resident,
            };
            match outcome {
                Outcome::Done { .. } => break,
                Outcome::InOtherHands => {
                    self.waits.left(tid, self.read_at, found.outside);
                    break;
                }
                // The tier's thread brings nothing back now.
                Outcome::Pending if self.engine.children.have_it_alone() => {
                    self.engine.fetch(Asker::Fault, page, &mut self.restorer.arrived);
                }
                Outcome::Pending => {
                    self.waits.left(tid, self.read_at, found.outside);
                    if let (Some(below), Some(extent)) = (self.engine.below(), extent) {
                        below.ask_early(extent.entry((page - extent.base()) / PAGE_SIZE));
                    }
                    if !self.engine.below().is_some_and(|below| below.want(page)) {
                        // Too many wait already: it asks again.
                        self.kernel.uffd.wake(page, PAGE_SIZE);
                    }
                    break;
                }
                Outcome::Resident if self.first_touch(extent, page, write, tid, found.outside) => break,
                // The page's mapping is gone, or no longer registered: who touches it is told by the kernel.
                Outcome::Gone => {
                    self.kernel.uffd.wake(page, PAGE_SIZE);
                    break;
                }
                // A mapping is being changed, which the kernel reports before it lets us go on.
                Outcome::TryAgain | Outcome::Resident => {
                    events::read_on(self.engine, self.kernel, &mut self.steps, &mut self.backoff);
                }
            }
        }
        // The page is there, and who waited for it runs.
        self.restorer.wipe();
        self.follower.follow(self.engine, tid, self.read_at);
        self.end_stamps(page, tid);
    }

    fn begin_stamps(&self, idle: Nanos) -> Stamps {
        Stamps { idle: idle.0, woke: self.read_at.0, read: time::now().0, cpu: u64::MAX, ..Stamps::default() }
    }

    fn stamp(&mut self, step: impl Fn(&mut Stamps) -> &mut u64) {
        if let Some(stamps) = &mut self.stamps {
            *step(stamps) = time::now().0;
        }
    }

    /// The page was put in place at `placed`, and its thread was woken.
    fn stamp_restored(&mut self, placed: Nanos) {
        let marks = self.restorer.marks.take().unwrap_or_default();
        if let Some(stamps) = &mut self.stamps {
            (stamps.taken, stamps.unpacked) = (marks.taken.0, marks.unpacked.0);
            (stamps.placed, stamps.woken) = (placed.0, time::now().0);
            // Before it goes elsewhere.
            stamps.cpu = thread::current_cpu().map_or(u64::MAX, u64::from);
        }
    }

    fn end_stamps(&mut self, page: usize, tid: u32) {
        self.restorer.marks = None;
        let Some(stamps) = self.stamps.take() else { return };
        let (page, tid, done) = (page as u64, u64::from(tid), time::now().0);
        self.engine.stamps.add(Stamps { page, tid, done, ..stamps });
    }

    /// Serves the first touch of a page that was never there. False when it must be looked at again.
    fn first_touch(
        &mut self,
        extent: Option<&Extent>,
        page: usize,
        write: bool,
        tid: u32,
        outside: u64,
    ) -> bool {
        let control = self.engine.control();
        // While zeros are put there nobody may evict the page: it could be one that came back a moment ago.
        let entry = match extent.map(|extent| extent.hold_resident((page - extent.base()) / PAGE_SIZE)) {
            Some(None) => return false,
            Some(held) => held,
            None => None,
        };
        let progress = if write || self.engine.room.is_kept() {
            // A page of its own at once: the shared zero page would fault again on the write, and that would not be reported
            // where it must be counted.
            // SAFETY: a page that nobody ever wrote reads as zeros.
            unsafe { self.kernel.uffd.copy(page, self.zeros.as_ptr() as usize, PAGE_SIZE) }
        } else {
            self.kernel.uffd.zero(page, PAGE_SIZE)
        };
        if let Some(entry) = entry {
            entry.put_back(Entry::RESIDENT);
        }
        let now = time::now();
        let took = now.since(self.read_at).0;
        match progress.error {
            None => {
                bump(&control.faults_zero, 1);
                self.engine.room.take(1);
            }
            // Somebody else was about to bring it when it was touched.
            Some(Errno::EEXIST) => {
                bump(&control.faults_spurious, 1);
                self.charge_wait(control, took + outside);
            }
            Some(Errno::EAGAIN) => return false,
            Some(Errno::ENOMEM) => {
                time::sleep(Nanos::from_millis(1));
                return false;
            }
            // No registered mapping there any more: who touches it is told by the kernel.
            Some(_) => {}
        }
        self.engine.latency.last_service.store(took, Relaxed);
        self.waits.woken(tid, now);
        self.kernel.uffd.wake(page, PAGE_SIZE);
        true
    }

    /// Brings the pages that follow the one that was waited for, while the thread that waited is being woken. Returns how
    /// many came.
    fn bring_rest(&mut self, extent: &Extent, from: usize, most: usize) -> usize {
        if most == 0 || from >= EXTENT_PAGES || most as u64 > self.engine.room.left() {
            return 0;
        }
        let began = time::now();
        let outcome = self.restorer.restore(extent, PageRange::from(from, most), Reason::Fault);
        let Outcome::Done { first, pages } = outcome else { return 0 };
        // Before the wake-up, after which the thread may run in our place and touch the next page.
        if self.kernel.uffd.has_message() {
            self.waits.unseen(time::now().since(began));
        }
        self.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
        pages
    }

    /// How much of the extent should come back with a page that was touched at `now`.
    fn reach(&mut self, extent: &Extent, now: Nanos) -> Reach {
        let engine = self.engine;
        if !engine.takes_guesses() {
            return Reach::Page;
        }
        let (touched, aside) = (extent.last_restore.load(Relaxed), extent.last_aside.load(Relaxed));
        let (burst, reach, begins) = self.walks.touch(
            extent.burst(),
            now.0,
            touched,
            aside,
            engine.setting(Setting::ColdAge),
            self.engine.is_helped(),
        );
        // Where many are walked through, or one is that this follows, one that lay still is, too, from its first touch on.
        let follows = || self.walks.are_many(now.0) || self.way.was_asked(number(extent), now.0);
        extent.set_burst(burst, reach != Reach::Page || !burst.in_use && follows());
        if reach != Reach::Page {
            engine.conditions.note_walk(now);
        }
        if begins {
            extent.flags.fetch_or(WALKED, Relaxed);
            if self.walks.are_many(now.0) {
                self.recall.begin(engine);
            }
        }
        reach
    }

    /// Has helpers bring an extent that is walked through, and the next one. Whether they were asked for this one now: where they were before, they
    /// have not come so far yet, and the fault thread does a part of it.
    fn go_through(&mut self, extent: &Extent, reach: Reach, now: Nanos) -> bool {
        let number = number(extent);
        let foreseen = self.way.was_asked(number, now.0);
        if !self.engine.is_helped() || reach != Reach::Everything && !foreseen {
            return false;
        }
        let ahead = self.way.go_through(number, now.0);
        if ahead.this {
            self.ask_for(extent, false);
        }
        if let Some(next) = ahead.then.and_then(|next| self.engine.space().find(next as usize * EXTENT_SIZE))
        {
            next.note_walk_ahead();
            self.ask_for(next, true);
        }
        ahead.this
    }

    /// Asks for what is away of an extent; with marks left out if it is only foreseen.
    fn ask_for(&self, extent: &Extent, foreseen: bool) {
        let away = extent.away_pages();
        for lo in (0..EXTENT_PAGES).step_by(AHEAD) {
            let mark = usize::from(foreseen && lo.is_multiple_of(MARK));
            let pages = PageRange::new(lo + mark, lo + AHEAD);
            if !away.and(&pages.set()).is_empty()
                && !self.engine.ask_ahead(extent.page_addr(pages.lo), pages.len())
            {
                return;
            }
        }
    }

    /// Brings the rest of an extent that is walked through, from page `from` on and then what lies before it, as far as that is wanted.
    fn bring_walked(&mut self, extent: &Extent, from: usize, reach: Reach) {
        let away = if reach == Reach::Whole { extent.aside_pages() } else { extent.away_pages() };
        Unasked::new(self.engine, self.kernel, &mut self.restorer, &mut self.waits)
            .bring_rest(extent, &away, from);
    }

    /// Brings what lies whole around a page that was touched, where such pages are in use together.
    fn bring_beside(&mut self, extent: &Extent, index: usize) {
        let pages = beside::comes_along(self.engine, extent, index, &mut self.clusters);
        if !pages.is_empty() {
            Unasked::new(self.engine, self.kernel, &mut self.restorer, &mut self.waits)
                .bring_rest(extent, &pages, index);
        }
    }

    /// A thread waited so long for its page, ns.
    fn charge_wait(&self, control: &ControlPage, waited: u64) {
        control.fault_ns.record(waited);
        bump(&control.faults_real_time, u64::from(self.follower.is_real_time()));
        // One writer: this thread.
        bump(&self.engine.latency.stall, waited);
    }

    /// So many waits took so long together.
    fn charge_late(&self, control: &ControlPage, waits: u64, together: u64) {
        for _ in 0..waits {
            self.charge_wait(control, together / waits);
        }
    }

    /// Asks helpers to go ahead of a sequential reader, the farther the longer it has been one.
    fn look_ahead(&self, extent: &Extent, first: usize, pages: usize) {
        let window = extent.window.load(Relaxed);
        let ahead = window as usize * AHEAD_A_PAGE;
        // Where no CPU is idle, a helper would lose the CPU with pages in hand that the program then waits for.
        let contended = self.engine.conditions.are_contended();
        if window < AT_ONCE
            || contended
            || self.engine.room.left() < 4 * ahead as u64
            || self.engine.phase() != Phase::Running
        {
            return;
        }
        let from = extent.page_addr(first) + pages * PAGE_SIZE;
        self.engine.ask_ahead(from, ahead);
    }
}

/// Notes for a page daemon that a thread waits for the page. The pages that come with it are not touched by that. Returns whether
/// the page was only set aside.
fn note(extent: &Extent, index: usize) -> bool {
    let state = extent.entry(index).state();
    let whole = matches!(state, State::Aside | State::Leaving | State::LeavingWanted);
    if whole {
        extent.asked_whole.add(index);
    }
    if state != State::Resident {
        extent.asked.add(index);
    }
    whole
}

/// How many pages to bring back for a fault: one, or twice as many as the last time if the touches are
/// sequential, up to [`AT_ONCE`] of them where helpers bring the next.
fn window(engine: &Engine, extent: &Extent, index: usize) -> usize {
    let before = if index == 0 { engine.space().find(extent.base().wrapping_sub(1)) } else { None };
    let (expected, last) = match before {
        Some(before) => {
            (before.next_fault.load(Relaxed) as usize % EXTENT_PAGES, before.window.load(Relaxed))
        }
        None => (extent.next_fault.load(Relaxed) as usize, extent.window.load(Relaxed)),
    };
    // Helpers do not end in the order in which they began.
    let near = if last >= AT_ONCE { MAX_WINDOW } else { 0 };
    // A page that is recorded was touched itself.
    let sequential = expected.abs_diff(index) <= near && last != 0 && !engine.errand.is_on();
    let window = if sequential { (last * 2).clamp(2, MAX_WINDOW as u32) } else { 1 };
    let at_once = if engine.conditions.are_contended() { window } else { window.min(AT_ONCE) };
    extent.window.store(window, Relaxed);
    extent.next_fault.store((index + at_once as usize).min(EXTENT_PAGES) as u32, Relaxed);
    at_once as usize
}

/// The number of an extent among all that there could be.
fn number(extent: &Extent) -> u64 {
    (extent.base() / EXTENT_SIZE) as u64
}

impl Engine {
    /// Tells the fault thread to end, by a message like any other: it may be asleep, waiting for one.
    pub(crate) fn ring_doorbell(&self, kernel: &Kernel) {
        let mut backoff = Backoff::new();
        let page = loop {
            match mem::map_own(PAGE_SIZE, 0) {
                Ok(page) if kernel.uffd.register(page, PAGE_SIZE, Modes::MISSING).is_ok() => break page,
                // SAFETY: our own page, which nobody touched.
                Ok(page) => drop(unsafe { mem::munmap(page, PAGE_SIZE) }),
                Err(_) => {}
            }
            backoff.wait();
        };
        self.link.doorbell.store(page, Release);
        // SAFETY: our own page; the fault thread serves it before it ends.
        unsafe { core::ptr::read_volatile(page as *const u8) };
        // Unmapping a registered range would be reported, to nobody.
        if kernel.uffd.unregister(page, PAGE_SIZE).is_ok() {
            // SAFETY: our own page, no longer needed.
            let _ = unsafe { mem::munmap(page, PAGE_SIZE) };
        }
    }
}
