//! The background thread: finds what is cold, evicts it, keeps the budget, the store and the counters; [`crate::requests`] are
//! carried out between two passes.
//!
//! It takes the CPU from nobody when it is woken (`SCHED_BATCH`), unless there is a limit to keep or nothing bounds it. What others may have to
//! wait for, `docs/architecture.md` bounds.

use crate::activity::Activity;
use crate::config::Setting;
use crate::control::Mode;
use crate::engine::{Agent, Engine, Phase};
use crate::evict::by_age::ByAge;
use crate::evict::demote::MOST_WHOLE;
use crate::evict::set_aside;
use crate::evict::worker::{Worker, SLICE, SLICE_AT_LIMIT};
use crate::fault::reason::{Outcome, Reason};
use crate::fault::run::MAX_WINDOW;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entry::{Entry, State};
use crate::tables::extent::Extent;
use crate::tier::location::Location;
use core::sync::atomic::Ordering::*;
use memfold_policy::budget::NO_LIMIT;
use memfold_sys::table;
use memfold_sys::thread::{self, Backoff, Scheduling};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{Errno, EXTENT_PAGES, PAGE_SIZE};

/// The shortest and the longest pause between two passes.
const TICK: (Nanos, Nanos) = (Nanos::from_millis(5), Nanos::from_millis(250));
/// The longest where a limit is kept: memory that is not managed may grow meanwhile.
const TICK_AT_LIMIT: Nanos = Nanos::from_millis(50);
/// How often the allocator is asked to give back what it keeps.
const DECAY: Nanos = Nanos::from_millis(250);
/// How often a page is tried to be brought back while the fault thread is at work.
const TRIES: u32 = 100;
/// How often to look whether a thread that is about to end was the last, and how far apart.
const LEAVING_TRIES: u32 = 40;
const LEAVING_PAUSE: Nanos = Nanos(50_000);

/// The thread's entry; `arg` is the engine's address.
pub extern "C" fn main(arg: usize) {
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*(arg as *const Engine) };
    thread::set_name(thread::agent_name::BACKGROUND);
    engine.agents.set_tid(Agent::Background, thread::current_tid());
    let in_child = engine.kernel().is_some();
    if fault_point!(TableShared: true, else false) {
        if let Err(error) = table::leave(engine.link.kept()) {
            if in_child {
                engine.fail_hard("memfold: a forked child has no memory for the pager's descriptors");
            }
            return engine.give_up("no descriptor table of the pager's own", Some(error));
        }
    }
    engine.look_at_group_first();
    engine.link.gauges.open_memory();
    if engine.traffic.goes_by_reports() {
        engine.link.gauges.open_advice();
    }
    if in_child {
        if !engine.take_over_in_child() {
            return;
        }
    } else {
        if let Err((what, error)) = engine.open_kernel() {
            return engine.give_up(what, Some(error));
        }
        if let Err(error) = engine.spawn_servants() {
            if let Some(kernel) = engine.kernel() {
                engine.end_servants(kernel);
            }
            return engine.give_up("no thread for the pager", Some(error));
        }
    }
    if engine.counts_for_nobody() {
        engine.publish_control();
    }
    let _ = thread::drop_capabilities(0);
    let worker = engine.kernel().ok_or(Errno::ENOMEM).and_then(|kernel| {
        // SAFETY: this thread is the only one that uses the store.
        let store = unsafe { engine.storage.take_store() };
        Worker::new(engine, kernel, store, in_child)
    });
    match worker {
        Ok(mut worker) => {
            // A forked child has its parent's.
            if engine.latency.wake_cost.load(Relaxed) == 0 {
                worker.measure_wake_cost();
            }
            // An improvement only; after the measurement, which it would spoil.
            worker.look_at_group();
            worker.open_tier(in_child);
            let _ = thread::set_scheduling(worker.scheduling());
            engine.control().mode.store(Mode::Embedded as u32, Release);
            engine.show_control();
            memfold_sys::inject::begin();
            // Before the program goes on, as what it touches meanwhile would not be reported.
            worker.look_at_limit();
            if !in_child {
                engine.set_phase(Phase::Running);
            }
            worker.run();
        }
        Err(_) => engine.fail_hard("memfold: no memory for the pager's background thread"),
    }
}

impl Worker {
    /// How it is scheduled beside others.
    pub(crate) fn scheduling(&self) -> Scheduling {
        let engine = self.engine;
        let is_unbounded = engine.setting(Setting::MaxCpu) >= NO_LIMIT;
        if !engine.options.policy.is_empty() || engine.is_limited() || is_unbounded {
            // A program at its limit waits for a page daemon; and folding that may cost what it likes is not to wait.
            Scheduling::Normal
        } else {
            // What it may take is bounded. So much it should have: who waits for a lock that it holds waits until it has had its turn.
            Scheduling::Batch
        }
    }

    fn run(&mut self) {
        if self.engine.errand.is_on() {
            self.take_up_recording();
        } else {
            self.take_up_policy();
        }
        loop {
            self.engine.traffic.brake.unpark();
            let bell = self.engine.agents.bell.load(Acquire);
            self.now = time::now();
            let longest = if self.engine.room.is_kept() { SLICE_AT_LIMIT } else { SLICE };
            (self.slice.began, self.slice.length) =
                (self.now, self.group_pause().map_or(longest, |pause| pause.min(longest)));
            if self.program_has_ended() {
                self.engine.end_servants(self.kernel);
                thread::exit(self.kernel.life.status(self.engine.lifecycle.last_status()));
            }
            self.discover_if_due();
            self.spare_locks_if_due();
            self.answer_requests();
            self.look_at_share();
            self.look_at_group();
            self.look_at_limit();
            // What is to make room has to be known.
            self.adopt_young(self.engine.room.is_kept());
            self.look_at_rest();
            self.look_at_utilization();
            self.look_at_source();
            self.look_at_mappings();
            if self.engine.phase() != Phase::Running {
                break;
            }
            let own_time = time::thread_cpu() + Nanos(self.engine.helpers.spent());
            self.budgets.contention.look(self.now, self.engine.helpers.at_work(), own_time);
            self.engine.conditions.set_contended(self.budgets.contention.is_contended());
            self.charge();
            let paused = self.engine.control().paused.load(Relaxed) != 0;
            self.enter(Activity::Look);
            let busy = !paused && if self.recording.is_some() { self.record() } else { self.evict() };
            self.enter(Activity::Drop);
            self.drop_copies();
            self.enter(Activity::Keep);
            self.compact_store();
            self.demote();
            self.enter(Activity::Other);
            self.take_inventory_if_due();
            self.count();
            self.engine.show_control();
            self.let_allocator_decay();
            self.wipe_working_memory(!busy);
            self.park();
            if !busy {
                self.sleep(bell);
                self.activities.slept();
            }
        }
        self.look_at_limit();
        self.finish();
    }

    /// Evicts what is due: what the limit on resident memory wants, then what the policy says. Returns whether there is more to do at once.
    fn evict(&mut self) -> bool {
        match self.eviction.daemon.take() {
            Some(mut daemon) => {
                let more = self.evict_by(&mut daemon);
                self.eviction.daemon = Some(daemon);
                more
            }
            None if self.make_room() => true,
            None => {
                let mut policy = ByAge::new(self);
                self.evict_by(&mut policy)
            }
        }
    }

    /// Whether the program has no thread left but the pager's, which then end too.
    fn program_has_ended(&self) -> bool {
        let is_over = || fault_point!(EndNotSeen: self.kernel.life.is_over(&thread::agents()), else false);
        if !self.engine.lifecycle.take_leaving() {
            return is_over();
        }
        // The thread that said so has yet to end.
        (0..LEAVING_TRIES).any(|_| {
            let over = is_over();
            if !over {
                time::sleep(LEAVING_PAUSE);
            }
            over
        })
    }

    /// The allocator changes mappings like a program thread, and may wait like one: for us it must be as if we slept.
    fn let_allocator_decay(&mut self) {
        if self.now.since(self.upkeep.last_decay) >= DECAY {
            self.upkeep.last_decay = self.now;
            self.with_room_for_all(|worker| {
                worker.park();
                worker.engine.decay();
                worker.engine.traffic.brake.unpark();
            });
        }
    }

    pub(crate) fn tick(&self) -> Nanos {
        if let Some(recording) = &self.recording {
            return recording.pause(time::now());
        }
        if let Some(daemon) = &self.eviction.daemon {
            return daemon.pause();
        }
        let longest = if self.engine.room.is_kept() { TICK_AT_LIMIT } else { TICK.1 };
        Nanos(self.cold_age() / 8).clamp(TICK.0, longest)
    }

    /// Evicts all that is worth it, whatever its age.
    pub(crate) fn evict_all(&mut self) {
        self.spare_locks();
        // What goes now takes the place of what came back since the last pass.
        self.store.drain(&self.engine.storage.free_slots);
        for extent in self.engine.space().all() {
            if extent.managed.load().is_empty() {
                continue;
            }
            self.spare_locks_in_time();
            if let Some(mut locked) = extent.try_lock() {
                if let Ok(scan) = set_aside::scan(self.kernel, extent, false) {
                    let pages = self.set_aside(&locked, &scan.present, scan.huge);
                    if pages != 0 {
                        extent.probed_pages.store(pages as u32, Relaxed);
                        locked.age().set_aside(self.now.0);
                    }
                }
            }
            let refused = extent.refused.load();
            self.set_aside_unshared(extent, &refused);
            while !self.launder(extent, &PageSet::ALL) {
                if self.engine.phase() != Phase::Running {
                    return;
                }
                self.slice.began = self.now;
            }
            self.sink_whole(MOST_WHOLE);
        }
        // What was locked between the last look and its going.
        self.spare_locks();
    }

    /// Brings everything of the extent back, as far as nobody else is at it; what lies below memory only if it may wait.
    pub(crate) fn bring_all(&mut self, extent: &Extent, waits: bool) {
        // To try each that lies below would take longer than all else, while a program wakes of which much is there.
        self.bring_back(extent, waits, |entry| {
            entry.state().is_away() && (waits || Location::below(entry).is_none())
        });
    }

    /// Brings back what is set aside, as far as nobody else is at it. What is stored stays.
    pub(crate) fn bring_aside(&mut self, extent: &Extent) {
        self.bring_back(extent, false, |entry| entry.state() == State::Aside);
    }

    fn bring_back(&mut self, extent: &Extent, waits: bool, wanted: impl Fn(Entry) -> bool) {
        let (mut index, mut tries) = (0, 0);
        while index < EXTENT_PAGES && extent.away.load(Relaxed) != 0 {
            let window = PageRange::from(index, MAX_WINDOW);
            let pages = window.indices().take_while(|&index| wanted(extent.entry(index))).count();
            if pages == 0 {
                (index, tries) = (index + 1, 0);
                continue;
            }
            match self.restorer.restore(extent, PageRange::from(index, pages), Reason::Ahead) {
                Outcome::Done { first, pages } => {
                    (index, tries) = (first + pages, 0);
                }
                Outcome::TryAgain if tries < TRIES => {
                    tries += 1;
                    self.stand_still_if_wanted();
                }
                Outcome::Pending if waits => self.fetch(extent.page_addr(index)),
                _ => (index, tries) = (index + 1, 0),
            }
        }
        // Much may come back at once, and should not lie in the store as well.
        fault_point!(StoreKept: self.compact_store());
    }

    /// Says how much of what is managed is in memory.
    fn count_resident(&self) {
        let managed = self.engine.space().all().filter(|extent| !extent.managed.load().is_empty());
        let present = managed.filter_map(|extent| set_aside::scan(self.kernel, extent, false).ok());
        let pages: usize = present.map(|scan| scan.present.len()).sum();
        self.engine.control().resident_bytes.store((pages * PAGE_SIZE) as u64, Relaxed);
    }

    /// Brings everything back, ends the fault thread, and says that the engine is off.
    fn finish(&mut self) {
        for extent in self.engine.space().all() {
            let mut backoff = Backoff::new();
            while fault_point!(StoppedTooSoon: extent.away.load(SeqCst) != 0, else false) {
                self.bring_all(extent, true);
                self.stand_still_if_wanted();
                backoff.wait();
            }
        }
        self.now = time::now();
        self.store.drain(&self.engine.storage.free_slots);
        self.count();
        self.count_resident();
        // From here on no program thread is inside a change, so none waits for the fault thread to read a report.
        // Whoever is inside may need the fault thread, and that one us: stand still until it has left.
        self.park();
        self.engine.traffic.gate.close();
        self.engine.end_servants(self.kernel);
        self.engine.traffic.brake.unpark();
        self.close_tier();
        for extent in self.engine.space().all() {
            extent.armed.remove(&PageSet::ALL);
        }
        // SAFETY: nothing is away and the fault thread has left. Closing the descriptor lets every range
        // go, and whoever might wait at it.
        unsafe { self.engine.close_kernel() };
        self.park();
        self.engine.traffic.gate.open();
        if self.engine.phase() == Phase::Pausing {
            self.engine.be_paused();
        } else {
            self.engine.turn_off(self.engine.stop_reason());
        }
    }
}
