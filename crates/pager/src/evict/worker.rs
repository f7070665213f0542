//! The background thread's own state, and the small things that it does between pages.

use crate::activity::{Activities, Activity};
use crate::changes::pieces;
use crate::codec::{Codecs, Page};
use crate::config::Setting;
use crate::contention::Contention;
use crate::control::bump;
use crate::engine::{Agent, Engine, Phase};
use crate::evict::group::Watch;
use crate::evict::limit::Hand;
use crate::evict::page_daemon::DaemonPolicy;
use crate::fault::restore::Restorer;
use crate::gauge::Gauge;
use crate::inventory::Schedule;
use crate::kernel::Kernel;
use crate::recording::Recording;
use crate::retry::patiently;
use crate::sabotage::fault_point;
use crate::share::Lease;
use crate::sleep::Rest;
use crate::source::{Choice, Sources};
use crate::store::Stores;
use crate::tier::round::Demotion;
use core::sync::atomic::Ordering::*;
use memfold_policy::budget::WINDOW;
use memfold_policy::effort::{self, Effort, Gains};
use memfold_policy::held::Held;
use memfold_policy::learning::Learning;
use memfold_policy::pace::{self, Pace};
use memfold_policy::recheck::Stretch;
use memfold_policy::returns::Returns;
use memfold_policy::stall::Stall;
use memfold_policy::touch::TouchCost;
use memfold_policy::utilization::Utilization;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{mem, Result, PAGE_SIZE};

/// Longest stretch of work before the settings, requests and counters are looked at again.
pub(crate) const SLICE: Nanos = Nanos::from_millis(50);
/// The same where a limit is kept: somebody may wait for room.
pub(crate) const SLICE_AT_LIMIT: Nanos = Nanos::from_millis(10);

/// For how long bytes that the program may have erased since can be found in staging or in working memory: two passes may come
/// between, and half a second later they are gone.
pub(crate) const LEFTOVERS: Nanos = Nanos::from_millis(400);

/// Memory that the agent threads use beside tables and store: stacks, codecs, buffers. Measured with `smaps`.
const AGENT_BYTES: u64 = 1 << 20;

/// What the background thread works with. Nobody else sees it.
pub struct Worker {
    pub(crate) engine: &'static Engine,
    pub(crate) kernel: &'static Kernel,
    pub(crate) store: &'static mut Stores,
    pub(crate) restorer: Restorer,
    /// How pages are compressed.
    pub(crate) packing: Packing,
    /// Time of the last look at the clock.
    pub(crate) now: Nanos,
    pub(crate) slice: Slice,
    /// What folding may cost.
    pub(crate) budgets: Budgets,
    /// What this thread's time goes to.
    pub(crate) activities: Activities,
    /// What goes, and where the going round of it is.
    pub(crate) eviction: Eviction,
    pub(crate) census: Census,
    pub(crate) upkeep: Upkeep,
    /// The recording under way, during which nothing is folded.
    pub(crate) recording: Option<Recording>,
    /// What tells which pages are cold, and what was chosen for that.
    pub(crate) sources: Sources,
    pub(crate) choice: Choice,
    pub(crate) lease: Lease,
    /// The limit of the control groups.
    pub(crate) watch: Watch,
    /// What goes to the tier below memory.
    pub(crate) demotion: Demotion,
    /// Whether the program sleeps.
    pub(crate) rest: Rest,
    /// How much of the CPUs it uses.
    pub(crate) utilization: Utilization,
}

/// A stretch of work, after which the settings, requests and counters are looked at again.
pub(crate) struct Slice {
    pub began: Nanos,
    /// How long it may take.
    pub length: Nanos,
}

/// How pages are compressed, and with what.
pub(crate) struct Packing {
    pub codecs: Codecs,
    pub buffer: &'static mut Page,
    pub page: &'static mut Page,
    /// They may hold what the program keeps from its children (`MADV_DONTFORK`).
    pub unforked: bool,
    /// What compressing stored pages again has gained.
    pub gains: Gains,
    /// What it gains to compress a page with the most effort at once, and how many pages were compressed with that in question.
    pub gains_at_once: Gains,
    pub compressed: u64,
    /// The number of the dictionary that pages are compressed with, and when the next is made.
    pub dictionary: Option<u8>,
    pub learning: Learning,
}

impl Packing {
    fn new() -> Result<Packing> {
        let codecs = Codecs::new()?;
        let pages = mem::map_scratch(2 * PAGE_SIZE, 0)?;
        // SAFETY: two pages of a mapping that nobody else has, and that stays.
        let [buffer, page] = [pages, pages + PAGE_SIZE].map(|at| unsafe { &mut *(at as *mut Page) });
        Ok(Packing {
            codecs,
            buffer,
            page,
            unforked: false,
            gains: Gains::new(),
            gains_at_once: Gains::new(),
            compressed: 0,
            dictionary: None,
            learning: Learning::default(),
        })
    }

    /// Overwrites what pages have left here.
    fn wipe(&mut self) {
        self.codecs.wipe(self.page);
        self.buffer.fill(0);
        self.unforked = false;
    }
}

/// What folding may cost: the program's waiting, and this thread's CPU time.
pub(crate) struct Budgets {
    /// The program's waiting.
    pub stall: Stall,
    /// What a touch costs the program.
    pub touch: TouchCost,
    /// What it costs to try again what was in use.
    pub tries: Stretch,
    /// This thread's CPU time.
    pub pace: Pace,
    /// CPU time that counts as spent beside it, ns: a forked child is no new program, and has no credit.
    pub spent_before: u64,
    /// How many pages come back soon after they went.
    pub returns: Returns,
    /// Whether the machine's CPUs have anything to spare.
    pub contention: Contention,
}

impl Budgets {
    /// A forked child has no credits.
    fn new(engine: &Engine, now: Nanos, forked: bool) -> Budgets {
        let latency = &engine.latency;
        let (stall, looking) = (latency.stall.load(Relaxed), latency.stall_looking.load(Relaxed));
        Budgets {
            stall: Stall::new(now.0, stall, looking, forked),
            tries: Stretch::new(now.0),
            touch: TouchCost::new(stall, engine.control().fault_ns.count.load(Relaxed)),
            // What the thread has used so far, to start, counts too.
            pace: Pace::new(now.0, 0),
            spent_before: if forked { pace::CREDIT } else { 0 },
            returns: Returns::new(engine.control().pages_evicted.load(Relaxed), engine.soon_back()),
            contention: Contention::new(),
        }
    }
}

/// What goes by which policy, and where the going round of it is.
pub(crate) struct Eviction {
    /// The page daemon at work, unless pages go by their age.
    pub daemon: Option<DaemonPolicy>,
    /// The round over all extents that the last pass did not finish.
    pub round: Round,
    /// The extents for which there was none of the stall budget left.
    pub held: Held,
    /// The cold age of the last pass, by which extents rest; 0 before any.
    pub paced_by: u64,
    /// Until when no round begins that can do no more than look.
    pub next_look: Nanos,
    /// When what was being touched last came back because the stall budget was used up.
    pub brought_back: Nanos,
    /// Where eviction for the limit goes on.
    pub hand: Hand,
    /// Pages stayed because somebody was in the way for that moment: they may go at the next look.
    pub put_off: bool,
    /// The store could not get memory since the last look.
    pub short_of_memory: bool,
}

impl Eviction {
    fn new() -> Eviction {
        Eviction {
            daemon: None,
            round: Round::default(),
            held: Held::new(),
            paced_by: 0,
            next_look: Nanos(0),
            brought_back: Nanos(0),
            hand: Hand::new(),
            put_off: false,
            short_of_memory: false,
        }
    }
}

/// Resident pages by the last look at each extent.
pub(crate) struct Census {
    /// When they were last counted, for a limit or a daemon.
    pub taken_at: Nanos,
    /// Pages in view.
    pub resident: u64,
    /// What all extents have in [`crate::tables::extent::Extent::scattered`], or less in a forked child.
    pub scattered: u64,
}

/// When what must be done now and then was last done.
pub(crate) struct Upkeep {
    /// The gauges were brought up to date.
    pub last_count: Nanos,
    /// Since when something may lie in staging that is of no use.
    pub copies_since: Nanos,
    /// This thread's working memory was overwritten.
    pub last_wipe: Nanos,
    /// The allocator was asked to give back what it keeps.
    pub last_decay: Nanos,
    /// When the program's memory is looked for, where nobody tells of it.
    pub next_discovery: Nanos,
    /// When a look for the mutexes that threads have was last begun, and how long it took.
    pub locks_looked_at: Nanos,
    /// See there.
    pub locks_took: Nanos,
    /// When inventory is taken.
    pub inventory: Schedule,
    /// When mappings are counted.
    pub mappings: pieces::Schedule,
}

impl Upkeep {
    fn new(now: Nanos) -> Upkeep {
        Upkeep {
            last_count: now,
            copies_since: now,
            last_wipe: now,
            last_decay: now,
            next_discovery: now,
            locks_looked_at: Nanos(0),
            locks_took: Nanos(0),
            inventory: Schedule::new(now),
            mappings: pieces::Schedule::new(now),
        }
    }
}

/// A round over all extents, by address.
#[derive(Clone, Copy, Default)]
pub(crate) struct Round {
    /// Where it goes on; 0 at its beginning.
    pub at: usize,
    /// Those that rest are looked at too.
    pub all: bool,
    /// Resident pages are counted.
    pub census: bool,
    /// Some extent has something left to do.
    pub more: bool,
    /// It began at the first extent, and was not interrupted since.
    pub from_start: bool,
    /// Everything is seen before anything is decided.
    pub sees_first: bool,
    /// Nobody interrupts it.
    pub whole: bool,
}

impl Worker {
    /// With an empty store, or the one that a `forked` child inherited. Such a one has no credits.
    pub fn new(
        engine: &'static Engine,
        kernel: &'static Kernel,
        store: &'static mut Stores,
        forked: bool,
    ) -> Result<Worker> {
        let now = time::now();
        Ok(Worker {
            engine,
            kernel,
            store,
            restorer: patiently(|| Restorer::new(engine, kernel))?,
            packing: patiently(Packing::new)?,
            now,
            slice: Slice { began: now, length: SLICE },
            budgets: Budgets::new(engine, now, forked),
            activities: Activities::new(),
            eviction: Eviction::new(),
            census: Census { taken_at: Nanos(0), resident: 0, scattered: 0 },
            upkeep: Upkeep::new(now),
            recording: None,
            sources: Sources::new(),
            choice: Choice::new(),
            lease: Lease::new(&engine.control().share),
            watch: Watch::new(),
            demotion: Demotion::default(),
            rest: Rest::default(),
            utilization: Utilization::default(),
        })
    }

    /// What the thread does from now on. Returns what it was doing.
    pub(crate) fn enter(&mut self, activity: Activity) -> Activity {
        self.activities.enter(activity)
    }

    /// How much work a page is worth that goes now.
    pub(crate) fn effort(&self) -> Effort {
        effort::first(self.engine.room.is_kept(), self.packing.gains_at_once.are_sure())
    }

    /// Does what cannot wait, and says whether the work at hand should be left for later. Between pages, with no lock held.
    pub(crate) fn interrupted(&mut self) -> bool {
        self.stand_still_if_wanted();
        self.now = time::now();
        self.engine.phase() != Phase::Running || self.now.since(self.slice.began) > self.slice.length
    }

    /// Lets others work that must not wait for the whole of a pass.
    pub(crate) fn stay_responsive(&mut self) {
        self.interrupted();
        self.slice.began = self.now;
    }

    /// Lets others look at tables that stand still, if somebody waits for that. With no lock held.
    pub(crate) fn stand_still_if_wanted(&mut self) {
        if self.engine.traffic.brake.wanted() {
            self.park();
            self.engine.traffic.brake.unpark();
        }
    }

    /// Others may change what is this thread's, and fork, from now on until it says otherwise. A child finds nothing here that the program keeps
    /// from it.
    pub(crate) fn park(&mut self) {
        if self.packing.unforked {
            fault_point!(UnforkedLeft: self.packing.wipe());
        }
        self.engine.traffic.brake.park();
    }

    /// Looks whether the daemon, if the process wants to be under one, has renewed its share.
    pub(crate) fn look_at_share(&mut self) {
        if !self.engine.options.daemon.is_empty() {
            let control = self.engine.control();
            let renewed = self.lease.look(&control.share, self.now);
            control.share_in_force.store(self.lease.bytes().unwrap_or(0), Relaxed);
            if renewed {
                self.look_at_offer();
            }
        }
    }

    /// Managed bytes that should stay in view by the share of a daemon's budget; `u64::MAX` for no share.
    pub(crate) fn share(&self) -> u64 {
        self.lease.limit(self.engine.control().overhead_bytes.load(Relaxed))
    }

    /// Charges the waiting and the work since the last call to the budgets.
    pub(crate) fn charge(&mut self) {
        let spare = self.budgets.contention.has_whole_cpu();
        self.budgets.pace.charge(self.now.0, self.spent(), self.cpu_share(), spare);
        self.engine.conditions.set_may_fold(self.may_fold());
        // What was for looking first: it is counted after the whole.
        let looking = self.engine.latency.stall_looking.load(Acquire);
        let limit = self.engine.setting(Setting::MaxStall);
        self.budgets.stall.have(self.to_look_at());
        self.budgets.stall.charge(self.now.0, self.engine.latency.stall.load(Relaxed), looking, limit);
        let control = self.engine.control();
        control.stall_ns.store(self.budgets.stall.total(), Relaxed);
        let ppm = self.budgets.stall.waited(self.now.0) / (WINDOW / 1_000_000);
        control.stall_ppm_peak.fetch_max(ppm, Relaxed);
        self.budgets.returns.note(self.now.0, control.pages_evicted.load(Relaxed), self.engine.soon_back());
    }

    /// Memory that there is to look at, bytes: of what is mapped, what was ever touched and is still there or stored.
    fn to_look_at(&self) -> u64 {
        let managed = self.engine.counts.managed.load(Relaxed);
        let there = self.engine.link.gauges.read(Gauge::Memory).map_or(u64::MAX, |[_, resident]| resident);
        there
            .saturating_add(self.engine.counts.stored.load(Relaxed))
            .saturating_mul(PAGE_SIZE as u64)
            .min(managed)
    }

    /// Overwrites what pages have left in this thread's working memory, before it sleeps and now and then while it does not.
    pub(crate) fn wipe_working_memory(&mut self, sleeps: bool) {
        let early = !sleeps && self.now.since(self.upkeep.last_wipe) < LEFTOVERS;
        if fault_point!(BufferNotWiped: early, else true) {
            return;
        }
        self.upkeep.last_wipe = self.now;
        self.packing.wipe();
        self.restorer.arrived.wipe();
    }

    /// Brings the gauges on the control page up to date.
    pub(crate) fn count(&mut self) {
        let (engine, control) = (self.engine, self.engine.control());
        let page = PAGE_SIZE as u64;
        let managed = engine.counts.managed.load(Relaxed);
        let evicted = engine.counts.stored.load(Relaxed) * page;
        let usage = self.store.usage();
        let tables = engine.tables.pool.used_bytes();
        // SAFETY: we are the background thread.
        let dictionaries = unsafe { engine.storage.dictionaries.used_bytes() };
        let overhead = usage.memory + tables + dictionaries + AGENT_BYTES;
        let saved = evicted.saturating_sub(overhead);
        for (gauge, peak, value) in [
            (&control.managed_bytes, &control.managed_bytes_peak, managed),
            (&control.evicted_bytes, &control.evicted_bytes_peak, evicted),
            (&control.stored_bytes, &control.stored_bytes_peak, usage.data),
            (&control.saved_bytes, &control.saved_bytes_peak, saved),
        ] {
            gauge.store(value, Relaxed);
            peak.fetch_max(value, Relaxed);
        }
        control.aside_bytes.store(engine.counts.aside.load(Relaxed) * page, Relaxed);
        control.overhead_bytes.store(overhead, Relaxed);
        control.store_bytes.store(usage.memory, Relaxed);
        control.table_bytes.store(tables, Relaxed);
        control.dictionary_bytes.store(dictionaries, Relaxed);
        let passed = self.now.since(self.upkeep.last_count).0 / 1_000_000;
        bump(&control.saved_byte_millis, saved * passed);
        self.upkeep.last_count = self.upkeep.last_count + Nanos::from_millis(passed);
        let cpu_of = |agent| engine.tid(agent).map_or(0, |tid| time::cpu_of(tid).0);
        control.cpu_fault_ns.store(cpu_of(Agent::Fault) + self.engine.helpers.spent(), Relaxed);
        control.cpu_background_ns.store(cpu_of(Agent::Background) + cpu_of(Agent::Proxy), Relaxed);
        control.cpu_tier_ns.store(cpu_of(Agent::Tier), Relaxed);
        self.activities.show(&control.activity_ns);
        control.updated_ns.store(self.now.0, Relaxed);
    }
}
