//! The engine: what the four kinds of threads share.
//!
//! How it starts and ends is in [`lifecycle`]. What it is not: any of the work. The fault thread's is in [`crate::fault::service`], the background thread's in
//! [`crate::evict::background`] and [`crate::evict::set_aside`], the program's threads' in [`crate::changes::mappings`] and
//! [`crate::changes::forking`].
//!
//! It is made of parts, of one idea each, and adds nothing to them but what program threads and the library ask of the whole.
//!
//! Invariants: an engine lives for ever (`'static`).

mod agents;
mod conditions;
mod counts;
mod deferred;
mod display;
pub(crate) mod huge;
mod latency;
mod lifecycle;
mod link;
mod options;
mod storage;
mod tables;
mod traffic;

use crate::changes::pieces::Pieces;
use crate::changes::proxy::Proxy;
use crate::config::{Config, Setting};
use crate::control::ControlPage;
use crate::control_file::ControlDir;
use crate::fault::children::Children;
use crate::fault::helpers::Helpers;
use crate::fault::prefetch::PrefetchQueue;
use crate::fault::room::Room;
use crate::fault::stamps;
use crate::file_path::FilePath;
use crate::kernel::Kernel;
use crate::mirror::Mapped;
use crate::recording::Errand;
use crate::sabotage;
use crate::samples::Sampler;
use crate::shared_text::SharedText;
use crate::source::Kind;
use crate::tables::bounds::Bounds;
use crate::tables::space::Space;
use crate::tier::arrived::Arrived;
use crate::tier::below::{Asker, Below};
use crate::tier::choice::{BadTier, Choice};
use crate::tier::keeper::Keeper;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use memfold_sys::Result;

pub(crate) use agents::Agent;
use agents::Agents;
use conditions::Conditions;
use counts::Counts;
use display::Display;
use latency::Latency;
use lifecycle::Lifecycle;
pub use lifecycle::Phase;
use link::Link;
use options::Options;
use storage::Storage;
use tables::Tables;
use traffic::Traffic;

/// Reads the number of a CPU that stands at an address, if it may be read now.
pub type ReadCpu<'a> = &'a dyn Fn(usize) -> Option<u32>;

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
    /// Called by the background thread about four times a second: time to give back memory that the allocator no longer needs. It may wait for locks
    /// that a forking thread holds, see [`Engine::try_before_fork`].
    pub decay: fn(),
    /// Has the word read in which the kernel writes the CPU on which a thread of the program runs or ran last, while that thread does not end.
    /// `None` where that cannot be told. Called by the fault thread.
    pub thread_cpu: fn(u32, ReadCpu<'_>) -> Option<u32>,
    /// Told of a range `(address, bytes)` of pages that are in the store now: who touches one waits. Called by the background thread; it must wait for nobody.
    pub went_away: fn(usize, usize),
    /// The allocator, where it can sample what it hands out. Called by the background thread.
    pub sampler: Option<&'static Sampler>,
}

/// The pager of this process.
pub struct Engine {
    pub(crate) tables: Tables,
    pub(crate) storage: Storage,
    pub(crate) counts: Counts,
    pub(crate) latency: Latency,
    pub(crate) conditions: Conditions,
    pub(crate) options: Options,
    pub(crate) traffic: Traffic,
    pub(crate) link: Link,
    pub(crate) agents: Agents,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) display: Display,
    /// What a limit on resident memory leaves.
    pub(crate) room: Room,
    /// How many mappings there are.
    pub(crate) pieces: Pieces,
    pub(crate) prefetch: PrefetchQueue,
    /// Who brings what is asked for there.
    pub(crate) helpers: Helpers,
    /// Room for stamps of touches, while somebody measures them.
    pub(crate) stamps: stamps::Room,
    /// Forked children that are owed pages.
    pub(crate) children: Children,
    /// What program threads ask of the userfaultfd.
    pub(crate) proxy: Proxy,
    /// What is recorded instead of folded.
    pub(crate) errand: Errand,
    host: Host,
    /// The engine that was prepared before this one; a process has more than one in tests only.
    next: AtomicPtr<Engine>,
}

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
            tables: Tables::new(),
            storage: Storage::new(),
            counts: Counts::new(),
            latency: Latency::new(),
            conditions: Conditions::new(),
            options: Options::new(),
            traffic: Traffic::new(),
            link: Link::new(),
            agents: Agents::new(),
            lifecycle: Lifecycle::new(),
            display: Display::new(),
            room: Room::new(),
            pieces: Pieces::new(),
            prefetch: PrefetchQueue::new(),
            helpers: Helpers::new(),
            stamps: stamps::Room::new(),
            children: Children::new(),
            proxy: Proxy::new(),
            errand: Errand::new(),
            host,
            next: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Makes the tables and takes the settings. To be called once, before anything else and from one thread;
    /// nothing is managed before. `ENOMEM` when there is no memory for the tables.
    pub fn prepare(&'static self, config: &Config) -> Result<()> {
        sabotage::choose(None);
        self.tables.make()?;
        for setting in Setting::ALL {
            self.options.set(setting, config.get(setting));
        }
        self.lifecycle.come_home();
        self.options.huge_pages.prepare(self.is_limited());
        self.count_for_nobody()?;
        let before = ENGINES.swap(self as *const Engine as *mut Engine, AcqRel);
        self.next.store(before, Release);
        memfold_sys::mem::on_claim(disown);
        Ok(())
    }

    /// Keeps the counters where nobody else sees them.
    pub(crate) fn count_for_nobody(&'static self) -> Result<()> {
        // SAFETY: zeros are a control page.
        let page = unsafe { self.tables.pool.make::<ControlPage>() }?;
        page.begin();
        for setting in Setting::ALL {
            page.settings[setting as usize].store(self.setting(setting), Relaxed);
        }
        let mut buffer = [0; 512];
        page.policy.set(self.options.policy.read(&mut buffer));
        page.log.set(self.options.log.read(&mut buffer));
        page.daemon.set(self.options.daemon.read(&mut buffer));
        page.source.store(Kind::Probe as u64, Relaxed);
        self.display.begin(page);
        Ok(())
    }

    /// Whether nobody else sees the counters.
    pub(crate) fn counts_for_nobody(&self) -> bool {
        !self.display.is_seen()
    }

    /// Lets others see the counters: of a process once it is prepared, of a forked child when it starts.
    pub fn publish_control(&self) {
        self.display.set_mapped((self.host.open_control)(self.control()));
    }

    /// Has others see the counters as they are now. A child that shares this memory, or has a copy of it that it was not told of,
    /// shows nothing.
    pub fn show_control(&self) {
        if self.counts_for_nobody() || !self.is_at_home() {
            return;
        }
        self.display.show();
    }

    /// Takes in what others ask for.
    pub(crate) fn hear_requests(&self) {
        self.display.hear();
    }

    /// Shows the counters no more: the program may have forbidden the call.
    pub fn hide_control(&self) {
        self.display.set_mapped(None);
    }

    /// Names the directory of the control page, in which observers outside report what is touched ([`crate::report`]), before the engine
    /// starts.
    pub fn hear_reports_in(&self, dir: &'static ControlDir) {
        self.display.hear_reports_in(dir);
    }

    /// Whether there can be policies and recordings.
    pub(crate) fn has_own_heap(&self) -> bool {
        (self.host.own_heap)()
    }

    /// Chooses the policy, `NAME` or `NAME:PARAMETER=VALUE,…`, before the engine starts. False if there is none such.
    pub fn choose_policy(&self, text: &str) -> bool {
        let known =
            text.len() <= SharedText::<16>::MOST && crate::evict::page_daemon::Choice::parse(text).is_some();
        if known {
            self.options.policy.set(text);
        }
        known
    }

    /// Has what comes back or is given up overwritten at once, and not within a second.
    pub fn wipe_at_once(&self) {
        self.options.wipes.store(1, Relaxed);
    }

    /// Has passes of the page daemon logged to a file, by its whole path, from the start.
    pub fn log_to(&self, path: &str) {
        self.options.log.set(path);
    }

    /// Puts the process under the budget of the daemon at this socket, by its whole path, whenever there is one: its share
    /// then limits what stays resident. False, and nothing is changed, if the path is longer than that of a socket.
    pub fn obey_daemon(&self, socket: &str) -> bool {
        let fits = socket.len() <= SharedText::<16>::MOST;
        if fits {
            self.options.daemon.set(socket);
        }
        fits
    }

    /// Has what was stored for long go to a tier below memory: as [`Choice`] reads it. `beside` is the directory in which the process
    /// that knows the network listens, for a tier there. Once, before the engine starts; then nothing is opened yet. Without memory for its tables
    /// there is none.
    ///
    /// # Errors
    /// What is wrong with the text; nothing is changed then.
    pub fn use_tier<'a>(&self, text: &'a str, beside: &str) -> core::result::Result<(), BadTier<'a>> {
        let choice = Choice::parse(text)?;
        if self.would_leave_erased(&choice) {
            return Err(BadTier::SealOfWiped);
        }
        if self.have_tier(&choice, beside).is_ok() {
            self.options.tier.set(text);
        }
        Ok(())
    }

    /// Whether what the program erased, which is to be nowhere at once, would lie in such a tier for all to read.
    pub(crate) fn would_leave_erased(&self, choice: &Choice<'_>) -> bool {
        !choice.sealed && self.options.wipes.load(Relaxed) != 0
    }

    /// Has a tier from now on, which nobody has opened. Once: before the engine starts, or by the background thread.
    ///
    /// # Errors
    /// There is no memory for its tables.
    pub(crate) fn have_tier(&self, choice: &Choice<'_>, beside: &str) -> Result<&'static Below> {
        // SAFETY: zeros are what is to be given a keeper, and nobody has it yet.
        let below = unsafe { self.tables.pool.make_sparse::<Below>() }?;
        // SAFETY: as above.
        unsafe { below.begin(Keeper::new(choice)) };
        if let Some(engines) = choice.engines() {
            let directory = FilePath::of(beside).unwrap_or(FilePath::empty());
            // SAFETY: as above.
            unsafe { below.files.remote.begin(directory, engines.wait, engines.disk.is_some()) };
        }
        self.storage.set_below(below);
        Ok(below)
    }

    /// The tier below memory, if there is one.
    pub(crate) fn below(&self) -> Option<&'static Below> {
        self.storage.below()
    }

    /// Fetches the cluster of the page at this address, where there is a tier, and waits for it. The fault thread may only where nobody else may bring it back.
    pub(crate) fn fetch(&self, asker: Asker, page: usize, arrived: &mut Arrived) {
        if let Some(below) = self.below() {
            below.await_cluster(asker, page, arrived);
        }
    }

    /// No thread of the program announces what it does: the engine finds the program's memory by itself ([`crate::evict`]), and goes by the kernel's
    /// reports of what becomes of it, forks among them. To be called before it starts, by who is in a program that knows nothing of it.
    pub fn go_by_reports(&self) {
        self.traffic.go_by_reports();
    }

    /// Sleeps while the engine is starting.
    pub fn wait_for_start(&self) {
        self.wait_for_phase_after(Phase::Starting);
    }

    /// Remembers an open descriptor of `/dev/userfaultfd`. It stays the program's, which may close it. What is no device is not
    /// remembered.
    pub fn use_device(&self, fd: i32) {
        self.link.use_device(fd);
    }

    /// Takes a userfaultfd of which the handshake is made, forks among what it reports, in the table of the thread that starts the engine.
    pub fn use_made(&self, made: crate::kernel::Made) {
        self.link.use_made(made);
    }

    /// What it asks of the process that it is in.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The value of a setting.
    pub fn setting(&self, setting: Setting) -> u64 {
        self.options.get(setting)
    }

    /// Changes a setting, to a value within its range.
    pub fn set_setting(&self, setting: Setting, value: u64) {
        self.options.set(setting, value);
        self.control().settings[setting as usize].store(value, Relaxed);
    }

    /// Whether resident memory is to be kept at a limit, other than by a page daemon.
    pub fn is_limited(&self) -> bool {
        self.limit() != u64::MAX && matches!(self.options.policy.read(&mut [0; 128]), "" | "age")
    }

    /// Stored pages that came back before they had been away for long, since the start.
    pub fn soon_back(&self) -> u64 {
        self.counts.soon_back.load(Relaxed)
    }

    /// The counters.
    pub fn control(&self) -> &'static ControlPage {
        self.display.page()
    }

    /// Whether mappings are noted before the tables are told of them: a recording and a limit want to see each from the start.
    pub(crate) fn notes_young(&self) -> bool {
        !self.errand.is_on() && !self.is_limited()
    }

    pub(crate) fn space(&self) -> &'static Space {
        self.tables.space()
    }

    /// What was opened at the kernel; `None` before the engine runs.
    pub(crate) fn kernel(&'static self) -> Option<&'static Kernel> {
        self.link.kernel()
    }

    /// Whether a page of the range is away from memory, so that who touches it waits. It may be otherwise a moment later.
    pub fn is_away(&self, addr: usize, len: usize) -> bool {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.space().existing(start, end).any(|extent| {
            let is_away = |index| extent.entry(index).state().is_away();
            extent.away.load(Relaxed) != 0 && extent.clip(start, end).indices().any(is_away)
        })
    }

    /// Says that pages are in the store now.
    pub(crate) fn went_away(&self, addr: usize, len: usize) {
        (self.host.went_away)(addr, len);
    }

    pub(crate) fn decay(&self) {
        (self.host.decay)();
    }

    /// The CPU on which a thread runs, or ran last.
    pub(crate) fn thread_cpu(&self, tid: u32) -> Option<u32> {
        (self.host.thread_cpu)(tid, &|at| {
            // A stack that the program mapped itself may be evicted, and nobody serves a fault of the fault thread.
            if self.space().find(at).is_some_and(|extent| !extent.armed.load().is_empty()) {
                return None;
            }
            // SAFETY: a part of the thread control block of a thread that does not end meanwhile, and never away.
            let cpu = unsafe { core::ptr::read_volatile(at as *const u32) };
            (cpu <= i32::MAX as u32).then_some(cpu)
        })
    }

    pub(crate) fn notify(&self, line: &str) {
        (self.host.notice)(line);
    }

    /// Wakes the background thread.
    pub(crate) fn ring(&self) {
        self.agents.ring();
    }

    /// Ends the process: to go on would lose bytes. What it says then is said whatever was said before, and also where a program wants no lines.
    pub(crate) fn fail_hard(&self, line: &str) -> ! {
        memfold_sys::table::say(line);
        memfold_sys::thread::abort_process()
    }
}
