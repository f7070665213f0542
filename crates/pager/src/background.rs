//! The background thread: finds what is cold, evicts it, keeps the budget, the store and the counters; [`crate::requests`] are
//! carried out between two passes.
//!
//! It runs at the lowest ordinary priority. What others may have to wait for, `docs/architecture.md` bounds.

use crate::activity::Activity;
use crate::bitmap::{PageRange, PageSet};
use crate::config::Setting;
use crate::control::Mode;
use crate::engine::{Agent, Engine, Phase};
use crate::entries::Entries;
use crate::entry::State;
use crate::evict;
use crate::extent::{Extent, Locked, DENSE, RECALLED, SEEN, SETTLED, WAITS_FOR_CPU, WAITS_FOR_STALL, WALKED};
use crate::group::COLD_AGE_PRESSED;
use crate::restore::{Outcome, Reason, MAX_WINDOW};
use crate::sabotage::{planted, Bug};
use crate::source::Seen;
use crate::space::moment;
use crate::worker::{Worker, SLICE};
use core::sync::atomic::Ordering::*;
use memfold_policy::age::Step;
use memfold_policy::budget::{NO_LIMIT, WINDOW};
use memfold_policy::pace;
use memfold_policy::returns::SOON;
use memfold_policy::walk;
use memfold_sys::table;
use memfold_sys::thread::{self, Backoff, Scheduling};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{Errno, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// The shortest and the longest pause between two passes.
const TICK: (Nanos, Nanos) = (Nanos::from_millis(5), Nanos::from_millis(250));
/// The longest where a limit is kept: memory that is not managed may grow meanwhile.
const TICK_AT_LIMIT: Nanos = Nanos::from_millis(50);
/// What a touch is expected to cost before any was, ns.
const TOUCH_COST_AT_FIRST: u64 = 10_000;
/// CPU time for which folding is worth going on with: looking at all extents takes some, ns.
const WORTHWHILE: u64 = 1_000_000;
/// What an eviction is taken to cost this thread from scan to store, ns a page, unless it has cost less so far.
const EVICTION_COST: u64 = 12_000;
/// How often resident pages are counted, where a limit or a daemon wants to know how many there are.
const CENSUS: Nanos = Nanos::from_secs(1);
/// How often the allocator is asked to give back what it keeps.
const DECAY: Nanos = Nanos::from_millis(250);
/// How often a page is tried to be brought back while the fault thread is at work.
const TRIES: u32 = 100;
/// How often to look whether a thread that is about to end was the last, and how far apart.
const LEAVING_TRIES: u32 = 40;
const LEAVING_PAUSE: Nanos = Nanos(50_000);
/// Cold age while more is resident than the share of a daemon's budget allows.
const COLD_AGE_OVER_SHARE: Nanos = Nanos::from_millis(200);

/// The thread's entry; `arg` is the engine's address.
pub extern "C" fn main(arg: usize) {
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*(arg as *const Engine) };
    thread::set_name(c"memfold-bg");
    engine.agents.set_tid(Agent::Background, thread::current_tid());
    let in_child = engine.kernel().is_some();
    if !planted(Bug::TableShared) {
        if let Err(error) = table::leave(engine.link.device()) {
            if in_child {
                engine.fail_hard("memfold: a forked child has no memory for the pager's descriptors");
            }
            return engine.give_up("no descriptor table of the pager's own", Some(error));
        }
    }
    engine.link.gauges.open_memory();
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
            // A program at its limit waits for a page daemon, which therefore competes as the program does; and somewhat where a limit may
            // come near, as who has no right to may not do so later.
            let nice = match (engine.options.policy.is_empty() && !engine.is_limited(), worker.group_pause())
            {
                (true, None) => 19,
                (true, Some(_)) => 10,
                (false, _) => 0,
            };
            let _ = thread::set_scheduling(Scheduling::Normal { nice });
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
            (self.slice.began, self.slice.length) =
                (self.now, self.group_pause().map_or(SLICE, |pause| pause.min(SLICE)));
            if self.program_has_ended() {
                self.engine.end_servants(self.kernel);
                thread::exit(self.kernel.life.status(self.engine.lifecycle.last_status()));
            }
            self.serve_prefetch();
            self.adopt_young(false);
            self.answer_requests();
            self.look_at_share();
            self.look_at_group();
            self.look_at_limit();
            self.look_at_source();
            self.look_at_mappings();
            if self.engine.phase() != Phase::Running {
                break;
            }
            self.budgets.contention.look(self.now);
            self.engine.conditions.set_contended(self.budgets.contention.is_contended());
            self.charge();
            let paused = self.engine.control().paused.load(Relaxed) != 0;
            self.enter(Activity::Look);
            let busy = !paused
                && if self.recording.is_some() {
                    self.record()
                } else if self.eviction.policing.is_some() {
                    self.police()
                } else {
                    self.make_room() || self.pass()
                };
            self.enter(Activity::Drop);
            self.drop_copies();
            self.enter(Activity::Keep);
            self.tidy_store();
            self.demote();
            self.enter(Activity::Other);
            self.take_inventory_if_due();
            self.count();
            self.engine.show_control();
            self.let_allocator_decay();
            self.wipe_working_memory(!busy);
            self.engine.traffic.brake.park();
            if !busy && self.engine.prefetch.is_empty() {
                thread::sleep_on(&self.engine.agents.bell, bell, self.tick());
                self.activities.slept();
            }
        }
        self.look_at_limit();
        self.finish();
    }

    /// Whether the program has no thread left but the pager's, which then end too.
    fn program_has_ended(&self) -> bool {
        let is_over = || !planted(Bug::EndNotSeen) && self.kernel.life.is_over(&thread::agents());
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
            self.engine.traffic.brake.park();
            self.engine.decay();
            self.engine.traffic.brake.unpark();
        }
    }

    pub(crate) fn cold_age(&self) -> u64 {
        let cold_age = self.engine.setting(Setting::ColdAge);
        if self.watch.is_pressed() && !self.is_over_share() {
            cold_age.min(COLD_AGE_PRESSED.0)
        } else if self.is_over_share() {
            cold_age.min(COLD_AGE_OVER_SHARE.0)
        } else {
            cold_age
        }
    }

    fn is_over_share(&self) -> bool {
        self.engine.control().resident_bytes.load(Relaxed) > self.share()
    }

    /// Whether there is CPU time to fold with now.
    pub(crate) fn may_fold(&self) -> bool {
        self.budgets.pace.left() >= WORTHWHILE.min(pace::worth(pace::BURST, self.cpu_share()))
            || self.is_free_of_budget()
    }

    /// Whether more may be set aside: no more than can be compressed when its time has come, and in the second after that.
    fn may_set_aside(&self) -> bool {
        if self.is_free_of_budget() {
            return true;
        }
        let evicted = self.engine.control().pages_evicted.load(Relaxed);
        let cost = self.budgets.pace.total().checked_div(evicted).unwrap_or(EVICTION_COST).min(EVICTION_COST);
        let committed = self.engine.counts.aside.load(Relaxed) * cost;
        let time = self.cold_age().saturating_add(Nanos::from_secs(1).0);
        self.may_fold() && committed <= pace::worth(time, self.cpu_share())
    }

    fn is_free_of_budget(&self) -> bool {
        self.is_over_share() || self.watch.is_pressed() || self.engine.setting(Setting::MaxCpu) >= NO_LIMIT
    }

    /// The share of a CPU that folding may take, in millionths.
    pub(crate) fn cpu_share(&self) -> u64 {
        let limit = self.engine.setting(Setting::MaxCpu);
        self.budgets.returns.allowed(pace::share(
            limit,
            self.budgets.contention.has_spare(),
            self.budgets.pace.total() + self.budgets.spent_before,
        ))
    }

    fn tick(&self) -> Nanos {
        if let Some(recording) = &self.recording {
            return recording.pause(time::now());
        }
        if let Some(policing) = &self.eviction.policing {
            return policing.pause();
        }
        let longest = if self.engine.room.is_kept() { TICK_AT_LIMIT } else { TICK.1 };
        let longest = self.group_pause().map_or(longest, |pause| pause.clamp(TICK.0, longest));
        Nanos(self.cold_age() / 8).clamp(TICK.0, longest)
    }

    /// Looks at every extent once, or at as many as there is time for; the next pass goes on with the others. Returns whether
    /// there is more to do at once.
    fn pass(&mut self) -> bool {
        let cold_age = self.cold_age();
        if self.may_fold() && !self.is_free_of_budget() {
            // Work takes at least as long as the CPU time that it costs.
            self.slice.length = self.slice.length.min(Nanos(self.budgets.pace.left()));
        }
        let limit = self.engine.setting(Setting::MaxStall);
        let mut probes = self.budgets.stall.looks(self.now.0, limit, self.touch_cost());
        let broken = self.budgets.stall.is_broken(self.now.0, limit);
        let mut held = false;
        // A round that was interrupted goes on: from the beginning it would never come to the end where there is little time.
        let (began, mut round) = (self.eviction.round.at, core::mem::take(&mut self.eviction.round));
        if began == 0 {
            // A probe counts too, but the first comes after a whole cold age.
            let wanted = !self.engine.options.daemon.is_empty();
            round.census = wanted && self.now.since(self.census.taken_at) >= CENSUS;
            // Who rests was told so by the cold age that held then.
            round.all = round.census || core::mem::replace(&mut self.eviction.paced_by, cold_age) != cold_age;
        }
        let (space, mut resident) = (self.engine.space(), 0);
        let awake = space.awake(if round.all { u32::MAX } else { moment(self.now.0) });
        for extent in awake.filter(|extent| extent.base() >= began) {
            if extent.managed.load().is_empty() && extent.away.load(Relaxed) == 0 {
                self.let_empty_rest(extent);
                continue;
            }
            if broken && !self.engine.room.is_kept() && self.recently_touched(extent) {
                self.retreat(extent);
            } else {
                round.more |= self.step(extent, cold_age, &mut probes, &mut held);
            }
            if round.census {
                self.count_present(extent);
            }
            resident += u64::from(extent.present.load(Relaxed));
            if self.interrupted() {
                round.at = extent.base() + EXTENT_SIZE;
                break;
            }
        }
        if held {
            self.engine.control().budget_holds.fetch_add(1, Relaxed);
        }
        if round.at > began {
            self.eviction.round = round;
            return true;
        }
        if round.all && round.more {
            // Some have something left to do.
            self.eviction.paced_by = 0;
        }
        if round.all && began == 0 {
            self.census.resident = resident;
        }
        self.engine.control().resident_bytes.store(self.census.resident * PAGE_SIZE as u64, Relaxed);
        if round.census {
            self.census.taken_at = self.now;
        }
        round.more
    }

    /// Counts the managed pages of an extent that are in view.
    fn count_present(&mut self, extent: &Extent) {
        if let Ok(scan) = evict::scan(self.kernel, extent, false) {
            self.note_present(extent, scan.present.and(&extent.managed.load()).len());
        }
    }

    /// So many pages of the extent are in view.
    fn note_present(&mut self, extent: &Extent, pages: usize) {
        let before = u64::from(extent.present.swap(pages as u32, Relaxed));
        self.census.resident = (self.census.resident + pages as u64).saturating_sub(before);
    }

    /// An extent that may have nothing to look at rests until somebody gives it something.
    fn let_empty_rest(&mut self, extent: &Extent) {
        let Some(extent) = &extent.try_lock() else { return };
        if extent.managed.load().is_empty()
            && extent.away.load(Relaxed) == 0
            && extent.armed.load().is_empty()
        {
            self.note_present(extent, 0);
            self.note_scattered(extent, 0);
            self.engine.space().let_rest(extent, u32::MAX);
        }
    }

    /// An extent whose time has not come rests until then, if it needs no other care.
    fn let_rest(&self, extent: &Locked, until: u64) {
        let idle = extent.away.load(Relaxed) == 0 && extent.armed.load().is_empty();
        if idle && extent.staging.load(Relaxed) == 0 {
            self.engine.space().let_rest(extent, moment(until));
            if !extent.soon.load().is_empty() {
                // Told without the lock, in this moment.
                self.engine.space().wake(extent);
            }
        }
    }

    /// What a fault has cost the program on average, ns.
    fn touch_cost(&self) -> u64 {
        let faults = self.engine.control().fault_ns.count.load(Relaxed);
        self.engine.latency.stall.load(Relaxed).checked_div(faults).unwrap_or(TOUCH_COST_AT_FIRST)
    }

    /// Whether pages of it were needed back within the last second.
    fn recently_touched(&self, extent: &Extent) -> bool {
        extent.away.load(Relaxed) != 0
            && self.now.since(Nanos(extent.last_restore.load(Relaxed))) < Nanos::from_secs(1)
    }

    /// Does what the policy says is due for one extent. Returns whether it must be gone on with at once.
    fn step(&mut self, extent: &Extent, cold_age: u64, probes: &mut u64, held: &mut bool) -> bool {
        let Some(mut locked) = extent.try_lock() else { return false };
        let now = self.now.0;
        if !extent.soon.load().is_empty() {
            self.set_aside_as_told(&mut locked);
            return false;
        }
        // What is probed ends its probe first: some of it may have been left where it is.
        if !locked.age().is_probed() && took_walk(extent) {
            locked.age().walked(now, cold_age);
            self.forget_returns(extent);
        }
        // The fault thread may still be at it; what cannot come back ends with the probe.
        if extent.flags.load(Relaxed) & RECALLED != 0
            && (!locked.age().is_probed() || count_aside(extent) == 0)
        {
            extent.flags.fetch_and(!RECALLED, Relaxed);
            if locked.age().is_probed() {
                locked.age().recalled(now, cold_age);
                self.forget_returns(extent);
            }
        }
        match locked.age().due(now, cold_age, self.sources.timing()) {
            Step::Wait => {
                if locked.age().is_probed() {
                    self.look_at_probe(extent, cold_age);
                }
                let until = locked.age().next(cold_age, self.sources.timing());
                self.let_rest(&locked, until);
                drop(locked);
                self.wait_step(extent)
            }
            _ if !self.may_fold() => self.put_off_for_cpu(extent),
            Step::Watch => {
                extent.waits_for.store(0, Relaxed);
                let watching = self.kernel.tracks_writes && self.watch(&locked);
                if watching || !self.kernel.tracks_writes {
                    locked.age().watched(now);
                } else {
                    locked.age().nothing_cold(now, cold_age);
                }
                false
            }
            Step::Probe if *probes == 0 => {
                *held = true;
                extent.waits_for.store(WAITS_FOR_STALL, Relaxed);
                false
            }
            Step::Probe if !self.may_set_aside() => self.put_off_for_cpu(extent),
            // Who walks would come to it at once.
            Step::Probe if !walk::is_over(now, self.engine.conditions.last_walk().0) => false,
            Step::Probe => {
                extent.waits_for.store(0, Relaxed);
                if locked.age().recheck_due(now, cold_age) {
                    extent.hot.remove(&PageSet::ALL);
                    extent.back_soon.remove(&PageSet::ALL);
                    if !self.kernel.tracks_writes {
                        extent.incompressible.remove(&PageSet::ALL);
                    }
                }
                if locked.age().retry_due(now) {
                    extent.refused.remove(&PageSet::ALL);
                }
                let before = extent.refused.load().minus(&extent.shared.load());
                let pages = self.probe(&locked, cold_age);
                let refused = extent.refused.load();
                if !refused.is_empty() {
                    locked.age().refused(now, cold_age);
                }
                if pages == 0 {
                    locked.age().nothing_cold(now, cold_age);
                } else {
                    *probes -= 1;
                    extent.probed_pages.store(pages as u32, Relaxed);
                    extent.unasked.store(0, Relaxed);
                    extent.flags.fetch_and(!SEEN, Relaxed);
                    locked.age().set_aside(now);
                }
                drop(locked);
                self.set_aside_unshared(extent, &refused.minus(&before));
                false
            }
            Step::Launder => {
                extent.waits_for.store(0, Relaxed);
                drop(locked);
                if extent.touched.load(Relaxed) == 0 {
                    let (_, touched) = touched_of(extent);
                    extent.touched.store(touched as u32 + 1, Relaxed);
                }
                if !self.launder(extent, &PageSet::ALL) {
                    return true;
                }
                let Some(mut locked) = extent.try_lock() else { return true };
                let probed = u64::from(extent.probed_pages.load(Relaxed));
                let touched = u64::from(extent.touched.swap(0, Relaxed) - 1);
                locked.age().probed(self.now.0, cold_age, probed as usize, touched as usize);
                if took_walk(extent) {
                    // Which says nothing of what the next look costs.
                    locked.age().walked(self.now.0, cold_age);
                } else {
                    self.budgets.stall.looked(probed, touched);
                }
                false
            }
        }
    }

    /// What came back unasked was not written by that.
    fn forget_returns(&self, extent: &Extent) {
        for run in extent.managed.load().runs() {
            evict::forget_written(self.kernel, extent, run);
        }
    }

    /// How expensive looks are is seen long before the first of them are over.
    fn look_at_probe(&mut self, extent: &Extent, cold_age: u64) {
        let early = self.now.since(Nanos(extent.last_aside.load(Relaxed))).0 < cold_age / 4;
        if !early && extent.flags.load(Relaxed) & SEEN == 0 {
            extent.flags.fetch_or(SEEN, Relaxed);
            self.budgets.stall.has_seen(touched_of(extent).1);
        }
    }

    /// What is due for an extent has to wait for CPU time. Returns that it is not to be gone on with at once.
    fn put_off_for_cpu(&mut self, extent: &Extent) -> bool {
        self.budgets.behind = Some(self.now);
        extent.waits_for.store(WAITS_FOR_CPU, Relaxed);
        false
    }

    /// What there is to do for an extent whose time has not come.
    fn wait_step(&mut self, extent: &Extent) -> bool {
        if self.disarm(extent) && self.kernel.tracks_writes {
            // Writes are tracked no more, which the next look goes by.
            if let Some(extent) = extent.try_lock() {
                self.watch(&extent);
            }
        }
        let flags = extent.flags.load(Relaxed);
        if flags & (SETTLED | DENSE) == SETTLED | DENSE {
            return false;
        }
        let away = self.now.since(Nanos(extent.last_laundry.load(Relaxed))).0;
        if away >= self.cold_age().saturating_mul(SOON) {
            extent.flags.fetch_or(SETTLED, Relaxed);
        }
        // A page that is still here gains more than one that is stored already.
        let idle = self.budgets.behind.is_none_or(|last| self.now.since(last).0 >= WINDOW);
        let wanted = flags & DENSE == 0 && away >= self.engine.setting(Setting::RecompressAge);
        if wanted && idle && self.may_fold() {
            if self.packing.gains.are_worth_it() && !self.recompress(extent) {
                return true;
            }
            extent.flags.fetch_or(DENSE, Relaxed);
        }
        false
    }

    /// Sets aside what the access source takes for cold. Returns how many pages.
    fn probe(&mut self, extent: &Locked, cold_age: u64) -> usize {
        let Ok(Seen { scan, cold }) = self.sources.look(self.kernel, extent, cold_age) else {
            // Not registered for write tracking any more, or never: begin again.
            self.watch(extent);
            return 0;
        };
        self.note_present(extent, scan.present.len());
        // With other bytes it may shrink, and a page that was written is the program's alone.
        extent.incompressible.remove(&scan.written);
        extent.refused.remove(&scan.written);
        self.set_aside(extent, &cold.minus(&extent.spared()), scan.huge)
    }

    /// Evicts all that can be evicted, whatever its age.
    pub(crate) fn evict_all(&mut self) {
        // What goes now takes the place of what came back since the last pass.
        self.store.drain(&self.engine.storage.free_slots);
        for extent in self.engine.space().all() {
            if extent.managed.load().is_empty() {
                continue;
            }
            if let Some(mut locked) = extent.try_lock() {
                if let Ok(scan) = evict::scan(self.kernel, extent, false) {
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
        }
    }

    /// Brings everything of the extent back, as far as nobody else is at it; what lies below memory only if it may wait.
    pub(crate) fn bring_all(&mut self, extent: &Extent, waits: bool) {
        let (mut index, mut tries) = (0, 0);
        while index < EXTENT_PAGES && extent.away.load(Relaxed) != 0 {
            match self.restorer.restore(extent, PageRange::from(index, MAX_WINDOW), Reason::Ahead) {
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
        if !planted(Bug::StoreKept) {
            self.tidy_store();
        }
    }

    /// The stall budget is used up: what is being touched comes back as a whole.
    fn retreat(&mut self, extent: &Extent) {
        self.bring_all(extent, false);
        if let Some(mut extent) = extent.try_lock() {
            if took_walk(&extent) {
                extent.age().walked(self.now.0, self.cold_age());
            } else {
                extent.age().retreated(self.now.0);
            }
            extent.waits_for.store(WAITS_FOR_STALL, Relaxed);
        }
    }

    /// Brings everything back, ends the fault thread, and says that the engine is off.
    fn finish(&mut self) {
        for extent in self.engine.space().all() {
            let mut backoff = Backoff::new();
            while extent.away.load(SeqCst) != 0 && !planted(Bug::StoppedTooSoon) {
                self.bring_all(extent, true);
                self.stand_still_if_wanted();
                backoff.wait();
            }
        }
        self.now = time::now();
        self.store.drain(&self.engine.storage.free_slots);
        self.count();
        // From here on no program thread is inside a change, so none waits for the fault thread to read a report.
        // Whoever is inside may need the fault thread, and that one us: stand still until it has left.
        self.engine.traffic.brake.park();
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
        self.engine.traffic.brake.park();
        self.engine.traffic.gate.open();
        self.engine.turn_off(self.engine.stop_reason());
    }
}

/// Whether the extent was walked through since the policy was last told.
fn took_walk(extent: &Extent) -> bool {
    extent.flags.load(Relaxed) & WALKED != 0 && extent.flags.fetch_and(!WALKED, Relaxed) & WALKED != 0
}

/// How many pages of the extent the probe under way set aside, and how many of them were touched.
fn touched_of(extent: &Extent) -> (u64, u64) {
    let probed = extent.probed_pages.load(Relaxed);
    let came = probed.saturating_sub(count_aside(extent));
    (u64::from(probed), u64::from(came.saturating_sub(extent.unasked.load(Relaxed))))
}

fn count_aside(extent: &Extent) -> u32 {
    let aside = |entries: &Entries| entries.iter().filter(|e| e.load().state() == State::Aside).count();
    extent.entries().map_or(0, aside) as u32
}
