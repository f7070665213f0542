//! The engine: what the four kinds of threads share.
//!
//! How it starts and ends is in [`lifecycle`]. What it is not: any of the work. The fault thread's is in [`crate::fault`], the background thread's in
//! [`crate::background`] and [`crate::evict`], the program's threads' in [`crate::mappings`] and
//! [`crate::forking`].
//!
//! Invariants: an engine lives for ever (`'static`); `kernel` is written once before the agent threads
//! start, and again only in a forked child in which no other thread exists.

mod deferred;
mod lifecycle;

use crate::codec::Dictionaries;
use crate::config::{Config, Setting};
use crate::control::{ControlPage, SharedText};
use crate::control_file::ControlDir;
use crate::gate::{Brake, Gate};
use crate::gauge::{self, Gauge};
use crate::kernel::Kernel;
use crate::lock::Mutex;
use crate::mirror::{Mapped, Mirror};
use crate::pieces::Pieces;
use crate::pool::Pool;
use crate::postmortem::Anchor;
use crate::prefetch::PrefetchQueue;
use crate::proxy::Proxy;
use crate::recording::Errand;
use crate::reservations::Reservations;
use crate::room::Room;
use crate::sabotage;
use crate::source::Kind;
use crate::space::Space;
use crate::staging::Staging;
use crate::store::{FreeQueue, Stores};
use crate::tier::below::Below;
use crate::tier::choice::{BadTier, Choice};
use crate::tier::keeper::Keeper;
use crate::turns::Turns;
use crate::young::Young;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use deferred::Deferred;
use memfold_sys::thread::Thread;
use memfold_sys::{file, futex, Result};

/// How far the engine has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// Not asked to fold, or too little to fold so far.
    Idle = 0,
    /// The agent threads are being made.
    Starting = 1,
    /// Folding.
    Running = 2,
    /// Bringing everything back.
    Stopping = 3,
    /// Ended, or it could not begin.
    Off = 4,
}

/// What the engine needs of the library that it is part of.
#[derive(Clone, Copy)]
pub struct Host {
    /// Where messages for people go; the argument is one line without end.
    pub notice: fn(&str),
    /// Makes the file in which others see this process's control page, which was begun, and shows it there; it stays mapped for
    /// ever. `None` where there is nobody to read it. Called by the background thread of a forked child.
    pub open_control: fn(&ControlPage) -> Option<Mapped>,
    /// Whether agent threads may use the global allocator: it is not the program's, needs nothing of a thread, and takes no lock that
    /// somebody can hold while he waits for the pager. Replacement policies take their tables from it, and a recording its own: where it is false
    /// there are none.
    pub own_heap: fn() -> bool,
    /// Called by the background thread about four times a second: time to give back memory that the allocator no longer needs.
    pub decay: fn(),
    /// Where the kernel writes the CPU on which a thread of the program ran last, a word that is negative when it does
    /// not. The thread is asleep in a fault and cannot exit meanwhile. `None` where that cannot be told. Called by the
    /// fault thread.
    pub thread_cpu: fn(u32) -> Option<usize>,
}

/// The pager of this process.
pub struct Engine {
    pub(crate) pool: Pool,
    pub(crate) space: UnsafeCell<*const Space>,
    /// Where a core has it: the first that was made in `pool`, so that a page begins with it.
    anchor: AtomicPtr<Anchor>,
    pub(crate) gate: Gate,
    pub(crate) brake: Brake,
    /// Why it is being stopped: a `&'static &'static str`.
    stop_reason: AtomicPtr<&'static str>,
    pub(crate) free_slots: FreeQueue,
    /// What stored pages need to be read.
    pub(crate) dictionaries: Dictionaries,
    pub(crate) prefetch: PrefetchQueue,
    /// The background thread's futex: incremented to wake it.
    pub(crate) bell: AtomicU32,
    pub(crate) turns: Turns,
    pub(crate) young: Young,
    /// What the program has reserved and the tables do not know.
    pub(crate) reservations: Reservations,
    /// What a limit on resident memory leaves.
    pub(crate) room: Room,
    /// How many mappings there are.
    pub(crate) pieces: Pieces,
    /// 1 once a mapping was moved past libc. It may have grown, and no table knows how far.
    pub(crate) moved_past_libc: AtomicU32,
    /// 1 once a mapping was changed past libc in any way.
    pub(crate) changed_past_libc: AtomicU32,
    /// 1 from before a fork until after it.
    pub(crate) forking: AtomicU32,
    /// The page whose first touch tells the fault thread to end; 0 for none.
    pub(crate) doorbell: AtomicUsize,
    /// Managed bytes.
    pub(crate) managed: AtomicU64,
    /// Pages set aside, and pages stored: what they are now.
    pub(crate) aside_pages: AtomicU64,
    pub(crate) stored_pages: AtomicU64,
    /// What all extents have in [`crate::extent::Extent::copies`], or somewhat more.
    pub(crate) copies: AtomicU64,
    /// 1 where what comes back or is given up is overwritten at once, and not within a second.
    pub(crate) wipes: AtomicU32,
    /// Stored pages that came back before they had been away for long, since the start.
    pub(crate) soon_back: AtomicU64,
    /// Waiting of the program's threads since the start, ns.
    pub(crate) stall: AtomicU64,
    /// That of it which was for pages that were only set aside, ns.
    pub(crate) stall_looking: AtomicU64,
    /// When memory was last seen to be walked through, ns.
    pub(crate) last_walk: AtomicU64,
    /// 1 while more threads want to run than there are CPUs.
    pub(crate) contended: AtomicU32,
    /// The limit on resident memory that follows from the control groups', bytes; `u64::MAX` while none is kept.
    pub(crate) group_limit: AtomicU64,
    /// What the last fault cost the fault thread, ns.
    pub(crate) last_service: AtomicU64,
    /// What a fault takes beside the fault thread's own work: entering the kernel, and two wake-ups. Measured at start, ns.
    pub(crate) wake_cost: AtomicU64,
    /// What entering the kernel by a fault and leaving it takes, ns.
    pub(crate) entry_cost: AtomicU64,
    /// What a thread waited outside of the fault thread's sight when it was last measured, ns. For the measurement at the start.
    pub(crate) last_outside: AtomicU64,
    /// How many threads may have waited for a page that another agent than the fault thread was bringing, without their messages
    /// being read, and the longest that one can have, ns.
    pub(crate) waits_ahead: AtomicU64,
    pub(crate) longest_ahead: AtomicU64,
    /// What restores gave up during a fork, and 1 where there is any.
    deferred: Deferred,
    any_deferred: AtomicU32,
    /// The tier below memory; null for none.
    below: AtomicPtr<Below>,
    /// The engine that was prepared before this one; a process has more than one in tests only.
    next: AtomicPtr<Engine>,
    phase: AtomicU32,
    enabled: AtomicU32,
    settings: [AtomicU64; Setting::COUNT],
    /// The policy, and the file that its passes are logged to.
    pub(crate) policy: SharedText<16>,
    pub(crate) log: SharedText<64>,
    /// The socket of the daemon under whose budget the process wants to be; empty for none.
    pub(crate) daemon: SharedText<16>,
    /// 1 where managed memory must have no huge pages.
    pub(crate) small_pages_only: AtomicU32,
    /// What is recorded instead of folded.
    pub(crate) errand: Errand,
    control: AtomicPtr<ControlPage>,
    /// Where observers report what is touched; null for nowhere.
    report_dir: AtomicPtr<ControlDir>,
    mirror: Mirror,
    kernel: UnsafeCell<Option<Kernel>>,
    /// The background thread's own; here so that a forked child finds it.
    store: UnsafeCell<Stores>,
    threads: Threads,
    /// The kernel's numbers of the agents, by [`Agent`]; 0 before they run.
    tids: [AtomicU32; 4],
    /// What program threads ask of the userfaultfd.
    pub(crate) proxy: Proxy,
    /// The process that the engine belongs to; a child of `vfork` that shares its memory is another one.
    process: AtomicU32,
    /// 1 after a thread of the program said that it is about to end, past libc.
    pub(crate) leaving: AtomicU32,
    /// What the last thread that said so ended with.
    pub(crate) last_status: AtomicU32,
    /// The program's open `/dev/userfaultfd`, and the number of that device; `NO_DEVICE` for none.
    device: (AtomicU32, AtomicU64),
    /// What agent threads read again and again, see [`crate::gauge`].
    pub(crate) gauges: [AtomicU32; Gauge::COUNT],
    /// Serialises waiting for the threads' end.
    pub(crate) joining: Mutex,
    host: Host,
}

/// The agent threads. Each place is reached by one thread at a time: `background` by who makes it and by who waits for its end, the
/// others by the background thread until it has ended.
struct Threads {
    fault: UnsafeCell<Option<Thread>>,
    proxy: UnsafeCell<Option<Thread>>,
    tier: UnsafeCell<Option<Thread>>,
    background: UnsafeCell<Option<Thread>>,
}

impl Threads {
    const fn new() -> Threads {
        Threads {
            fault: UnsafeCell::new(None),
            proxy: UnsafeCell::new(None),
            tier: UnsafeCell::new(None),
            background: UnsafeCell::new(None),
        }
    }

    /// All that there are.
    ///
    /// # Safety
    /// No other thread reaches any of them.
    unsafe fn take(&self) -> impl Iterator<Item = Thread> {
        // SAFETY: the caller's contract.
        let take = |place: &UnsafeCell<Option<Thread>>| unsafe { (*place.get()).take() };
        [take(&self.fault), take(&self.proxy), take(&self.tier), take(&self.background)].into_iter().flatten()
    }
}

/// An agent thread, by what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Agent {
    /// [`crate::fault`].
    Fault = 0,
    /// [`crate::background`].
    Background = 1,
    /// [`crate::proxy`].
    Proxy = 2,
    /// [`crate::tier::thread`].
    Tier = 3,
}

// SAFETY: `space` and `kernel` are written before others look (see the module); each of `threads` is reached by who
// starts or ends the engine, one at a time by `phase`.
unsafe impl Sync for Engine {}

/// Before this kernel a move of a page of a huge one that is mapped in part, and pinned in part, may never end: seen on
/// 6.12, and not on this one.
const HUGE_MOVES_END: (u32, u32) = (6, 18);

/// No descriptor.
const NO_DEVICE: u32 = u32::MAX;

/// The engine that was prepared last.
static ENGINES: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());

/// The range is memfold's own from now on, whatever was there before.
fn disown(addr: usize, len: usize) {
    let mut at = ENGINES.load(Acquire);
    // SAFETY: engines live for ever.
    while let Some(engine) = unsafe { at.as_ref() } {
        engine.disown(addr, len);
        at = engine.next.load(Acquire);
    }
}

impl Engine {
    /// An engine that does nothing yet.
    pub const fn new(host: Host) -> Engine {
        Engine {
            pool: Pool::new(),
            space: UnsafeCell::new(core::ptr::null()),
            anchor: AtomicPtr::new(core::ptr::null_mut()),
            gate: Gate::new(),
            brake: Brake::new(),
            stop_reason: AtomicPtr::new(core::ptr::null_mut()),
            free_slots: FreeQueue::new(),
            dictionaries: Dictionaries::new(),
            prefetch: PrefetchQueue::new(),
            bell: AtomicU32::new(0),
            turns: Turns::new(),
            young: Young::new(),
            reservations: Reservations::new(),
            room: Room::new(),
            pieces: Pieces::new(),
            moved_past_libc: AtomicU32::new(0),
            changed_past_libc: AtomicU32::new(0),
            forking: AtomicU32::new(0),
            doorbell: AtomicUsize::new(0),
            managed: AtomicU64::new(0),
            aside_pages: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            wipes: AtomicU32::new(0),
            soon_back: AtomicU64::new(0),
            stored_pages: AtomicU64::new(0),
            stall: AtomicU64::new(0),
            stall_looking: AtomicU64::new(0),
            last_walk: AtomicU64::new(0),
            contended: AtomicU32::new(1),
            group_limit: AtomicU64::new(u64::MAX),
            last_service: AtomicU64::new(0),
            wake_cost: AtomicU64::new(0),
            entry_cost: AtomicU64::new(0),
            last_outside: AtomicU64::new(0),
            waits_ahead: AtomicU64::new(0),
            longest_ahead: AtomicU64::new(0),
            store: UnsafeCell::new(Stores::new()),
            deferred: Deferred::new(),
            any_deferred: AtomicU32::new(0),
            below: AtomicPtr::new(core::ptr::null_mut()),
            next: AtomicPtr::new(core::ptr::null_mut()),
            phase: AtomicU32::new(Phase::Idle as u32),
            enabled: AtomicU32::new(0),
            settings: [const { AtomicU64::new(0) }; Setting::COUNT],
            policy: SharedText::new(),
            log: SharedText::new(),
            daemon: SharedText::new(),
            small_pages_only: AtomicU32::new(0),
            errand: Errand::new(),
            control: AtomicPtr::new(core::ptr::null_mut()),
            report_dir: AtomicPtr::new(core::ptr::null_mut()),
            mirror: Mirror::new(),
            kernel: UnsafeCell::new(None),
            threads: Threads::new(),
            tids: [const { AtomicU32::new(0) }; 4],
            proxy: Proxy::new(),
            process: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
            last_status: AtomicU32::new(0),
            device: (AtomicU32::new(NO_DEVICE), AtomicU64::new(0)),
            gauges: [const { AtomicU32::new(gauge::NONE) }; Gauge::COUNT],
            joining: Mutex::new(),
            host,
        }
    }

    /// Makes the tables and takes the settings. To be called once, before anything else and from one thread;
    /// nothing is managed before. `ENOMEM` when there is no memory for the tables.
    pub fn prepare(&'static self, config: &Config) -> Result<()> {
        sabotage::choose(None);
        // SAFETY: zeros are an anchor of nothing.
        let anchor = unsafe { self.pool.make::<Anchor>() }?;
        // SAFETY: zeros are an empty space; nobody else uses the engine yet.
        unsafe { *self.space.get() = self.pool.make::<Space>()? };
        anchor.begin(self.space());
        self.anchor.store(anchor as *const Anchor as *mut Anchor, Release);
        for setting in Setting::ALL {
            self.settings[setting as usize].store(config.get(setting), Relaxed);
        }
        self.process.store(memfold_sys::thread::current_pid(), Relaxed);
        // A limit is kept page by page.
        let small = memfold_sys::version::kernel() < HUGE_MOVES_END || self.is_limited();
        self.small_pages_only.store(u32::from(small), Relaxed);
        self.count_for_nobody()?;
        let before = ENGINES.swap(self as *const Engine as *mut Engine, AcqRel);
        self.next.store(before, Release);
        memfold_sys::mem::on_claim(disown);
        Ok(())
    }

    /// What a core is read by; `None` before there are tables.
    pub(crate) fn anchor(&self) -> Option<&Anchor> {
        // SAFETY: made once, for ever.
        unsafe { self.anchor.load(Acquire).as_ref() }
    }

    /// Has a core tell where staging lies.
    pub(crate) fn tell_staging(&self, staging: &Staging) {
        if let Some(anchor) = self.anchor() {
            anchor.set_staging(staging.base());
        }
    }

    /// Keeps the counters where nobody else sees them.
    pub(crate) fn count_for_nobody(&'static self) -> Result<()> {
        // SAFETY: zeros are a control page.
        let page = unsafe { self.pool.make::<ControlPage>() }?;
        page.begin();
        for setting in Setting::ALL {
            page.settings[setting as usize].store(self.setting(setting), Relaxed);
        }
        let mut buffer = [0; 512];
        page.policy.set(self.policy.read(&mut buffer));
        page.log.set(self.log.read(&mut buffer));
        page.daemon.set(self.daemon.read(&mut buffer));
        page.source.store(Kind::Probe as u64, Relaxed);
        self.mirror.set(None);
        self.control.store(page as *const ControlPage as *mut ControlPage, Release);
        Ok(())
    }

    /// Whether nobody else sees the counters.
    pub(crate) fn counts_for_nobody(&self) -> bool {
        !self.mirror.is_set()
    }

    /// Lets others see the counters: of a process once it is prepared, of a forked child when it starts.
    pub fn publish_control(&self) {
        self.mirror.set((self.host.open_control)(self.control()));
    }

    /// Has others see the counters as they are now. A child that shares this memory, or has a copy of it that it was not told of,
    /// shows nothing.
    pub fn show_control(&self) {
        if self.counts_for_nobody() || !self.is_at_home() {
            return;
        }
        self.mirror.show(self.control());
    }

    /// Takes in what others ask for.
    pub(crate) fn hear_requests(&self) {
        self.mirror.hear(self.control());
    }

    /// Shows the counters no more: the program may have forbidden the call.
    pub fn hide_control(&self) {
        self.mirror.set(None);
    }

    /// Names the directory of the control page, in which observers outside report what is touched ([`crate::report`]), before the engine
    /// starts.
    pub fn hear_reports_in(&self, dir: &'static ControlDir) {
        self.report_dir.store(dir as *const ControlDir as *mut ControlDir, Release);
    }

    pub(crate) fn report_dir(&self) -> Option<&'static ControlDir> {
        // SAFETY: null, or what was given, which is for ever.
        unsafe { self.report_dir.load(Acquire).as_ref() }
    }

    /// Whether there can be policies and recordings.
    pub(crate) fn has_own_heap(&self) -> bool {
        (self.host.own_heap)()
    }

    /// Chooses the policy, `NAME` or `NAME:PARAMETER=VALUE,…`, before the engine starts. False if there is none such.
    pub fn choose_policy(&self, text: &str) -> bool {
        let known = text.len() <= SharedText::<16>::MOST && crate::page_daemon::Choice::parse(text).is_some();
        if known {
            self.policy.set(text);
        }
        known
    }

    /// Has what comes back or is given up overwritten at once, and not within a second.
    pub fn wipe_at_once(&self) {
        self.wipes.store(1, Relaxed);
    }

    /// Has passes of the page daemon logged to a file, by its whole path, from the start.
    pub fn log_to(&self, path: &str) {
        self.log.set(path);
    }

    /// Puts the process under the budget of the daemon at this socket, by its whole path, whenever there is one: its share
    /// then limits what stays resident. False, and nothing is changed, if the path is longer than that of a socket.
    pub fn obey_daemon(&self, socket: &str) -> bool {
        let fits = socket.len() <= SharedText::<16>::MOST;
        if fits {
            self.daemon.set(socket);
        }
        fits
    }

    /// Has what was stored for long go to a tier below memory: `disk=DIR[,size=20G][,after=10m]`. Once, before the engine starts; then nothing
    /// is opened yet. Without memory for its tables there is none.
    ///
    /// # Errors
    /// What is wrong with the text; nothing is changed then.
    pub fn use_tier<'a>(&self, text: &'a str) -> core::result::Result<(), BadTier<'a>> {
        let choice = Choice::parse(text)?;
        // SAFETY: zeros are what is to be given a keeper, and nobody has it yet.
        if let Ok(below) = unsafe { self.pool.make_sparse::<Below>() } {
            // SAFETY: as above.
            unsafe { below.begin(Keeper::new(&choice)) };
            self.below.store(below as *const Below as *mut Below, Release);
        }
        Ok(())
    }

    /// The tier below memory, if there is one.
    pub(crate) fn below(&self) -> Option<&'static Below> {
        // SAFETY: made once, for ever.
        unsafe { self.below.load(Acquire).as_ref() }
    }

    /// Remembers an open descriptor of `/dev/userfaultfd`. It stays the program's, which may close it. What is no device is not
    /// remembered.
    pub fn use_device(&self, fd: i32) {
        if let Some(number) = file::device_number(fd) {
            self.device.1.store(number, Relaxed);
            self.device.0.store(fd as u32, Release);
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Idle,
            1 => Phase::Starting,
            2 => Phase::Running,
            3 => Phase::Stopping,
            _ => Phase::Off,
        }
    }

    /// Whether the calling thread is one of the process that the engine belongs to.
    pub fn is_at_home(&self) -> bool {
        self.process.load(Relaxed) == memfold_sys::thread::current_pid()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Release);
        futex::wake(&self.phase, u32::MAX >> 1);
    }

    /// The value of a setting.
    pub fn setting(&self, setting: Setting) -> u64 {
        self.settings[setting as usize].load(Relaxed)
    }

    /// Changes a setting, to a value within its range.
    pub fn set_setting(&self, setting: Setting, value: u64) {
        self.settings[setting as usize].store(value, Relaxed);
        self.control().settings[setting as usize].store(value, Relaxed);
    }

    /// Whether resident memory is to be kept at a limit, other than by a page daemon.
    pub fn is_limited(&self) -> bool {
        self.limit() != u64::MAX && matches!(self.policy.read(&mut [0; 128]), "" | "age")
    }

    /// Stored pages that came back before they had been away for long, since the start.
    pub fn soon_back(&self) -> u64 {
        self.soon_back.load(Relaxed)
    }

    /// The counters.
    pub fn control(&self) -> &'static ControlPage {
        // SAFETY: set by `prepare`, and pages stay mapped for ever.
        unsafe { &*self.control.load(Acquire) }
    }

    /// Keeps huge pages out of memory that was just mapped, where the kernel has the fault of [`HUGE_MOVES_END`].
    pub(crate) fn keep_pages_small(&self, addr: usize, len: usize) {
        if self.small_pages_only.load(Relaxed) != 0 {
            // A kernel without huge pages refuses, which is as good.
            // SAFETY: advice, which changes no contents.
            let _ = unsafe { memfold_sys::mem::madvise(addr, len, libc::MADV_NOHUGEPAGE) };
        }
    }

    /// Whether mappings are noted before the tables are told of them: a recording and a limit want to see each from the start.
    pub(crate) fn notes_young(&self) -> bool {
        !self.errand.is_on() && !self.is_limited()
    }

    pub(crate) fn space(&self) -> &'static Space {
        // SAFETY: set by `prepare`, for ever.
        unsafe { &**self.space.get() }
    }

    /// What was opened at the kernel; `None` before the engine runs.
    pub(crate) fn kernel(&self) -> Option<&'static Kernel> {
        // SAFETY: see the module's invariants; the engine is `'static`.
        unsafe { (*self.kernel.get()).as_ref() }
    }

    /// # Safety
    /// No other thread may look at it: before the agent threads start, or in a forked child.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn kernel_mut(&self) -> &mut Option<Kernel> {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.kernel.get() }
    }

    /// The store.
    ///
    /// # Safety
    /// Only the background thread may call this, once.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn take_store(&'static self) -> &'static mut Stores {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.store.get() }
    }

    pub(crate) fn decay(&self) {
        (self.host.decay)();
    }

    /// The CPU on which a thread that is asleep in a fault ran last.
    pub(crate) fn thread_cpu(&self, tid: u32) -> Option<u32> {
        let at = (self.host.thread_cpu)(tid)?;
        // A stack that the program mapped itself may be evicted, and nobody serves a fault of the fault thread.
        if self.space().find(at).is_some_and(|extent| !extent.armed.load().is_empty()) {
            return None;
        }
        // SAFETY: a part of the thread control block of a living thread, and never away.
        let cpu = unsafe { core::ptr::read_volatile(at as *const u32) };
        (cpu <= i32::MAX as u32).then_some(cpu)
    }

    pub(crate) fn notify(&self, line: &str) {
        (self.host.notice)(line);
    }

    /// The program's open `/dev/userfaultfd`, if it was given one and has not closed it.
    pub(crate) fn device(&self) -> Option<i32> {
        let fd = self.device.0.load(Acquire);
        // The program may have closed it, and opened something else there.
        let is_still = || file::device_number(fd as i32) == Some(self.device.1.load(Relaxed));
        (fd != NO_DEVICE && is_still()).then_some(fd as i32)
    }

    /// Wakes the background thread.
    pub(crate) fn ring(&self) {
        self.bell.fetch_add(1, Release);
        futex::wake(&self.bell, 1);
    }

    /// Ends the process: to go on would lose bytes.
    pub(crate) fn fail_hard(&self, line: &str) -> ! {
        self.notify(line);
        memfold_sys::thread::abort_process()
    }
}
