//! How the engine starts and ends: its phases, and the agent threads.
//!
//! Invariants: one thread at a time starts or ends the engine, by `phase`; a fork finds the engine either idle or starting with its
//! thread made.

use super::{Agent, Engine};
use crate::changes::proxy;
use crate::config::Setting;
use crate::control::Mode;
use crate::evict::background;
use crate::fault::{helpers, service};
use crate::kernel::{Kernel, Missing};
use crate::tier;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use memfold_sys::file::Fd;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::thread::{self, CpuSet, Thread};
use memfold_sys::{futex, signal, Errno, Result};

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
    /// Bringing everything back, to begin anew.
    Pausing = 5,
    /// Everything is back and the agent threads are leaving; who waits for that makes it idle.
    Paused = 6,
}

impl Phase {
    /// Whether it stays so until somebody wants it otherwise.
    pub fn is_settled(self) -> bool {
        matches!(self, Phase::Idle | Phase::Running | Phase::Off)
    }
}

/// Where the engine is between its start and its end.
pub(crate) struct Lifecycle {
    phase: AtomicU32,
    /// 1 once it may start by itself.
    enabled: AtomicU32,
    /// Why it is being stopped: a `&'static &'static str`.
    stop_reason: AtomicPtr<&'static str>,
    /// The process that the engine belongs to; a child of `vfork` that shares its memory is another one.
    process: AtomicU32,
    /// 1 after a thread of the program said that it is about to end, past libc.
    leaving: AtomicU32,
    /// What the last thread that said so ended with.
    last_status: AtomicU32,
    /// How often the program took on other credentials than the agents had.
    changes: AtomicU32,
}

impl Lifecycle {
    /// Not begun.
    pub const fn new() -> Lifecycle {
        Lifecycle {
            phase: AtomicU32::new(Phase::Idle as u32),
            enabled: AtomicU32::new(0),
            stop_reason: AtomicPtr::new(core::ptr::null_mut()),
            process: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
            last_status: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Idle,
            1 => Phase::Starting,
            2 => Phase::Running,
            3 => Phase::Stopping,
            5 => Phase::Pausing,
            6 => Phase::Paused,
            _ => Phase::Off,
        }
    }

    /// It has come so far. Wakes who waits for that.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Release);
        futex::wake(&self.phase, u32::MAX >> 1);
    }

    /// From one phase to another; false when it is not in the first.
    pub fn change_phase(&self, from: Phase, to: Phase) -> bool {
        let changed = self.phase.compare_exchange(from as u32, to as u32, AcqRel, Relaxed).is_ok();
        if changed {
            futex::wake(&self.phase, u32::MAX >> 1);
        }
        changed
    }

    /// Sleeps while the phase is `phase`.
    pub fn wait_for_phase_after(&self, phase: Phase) {
        let _ = futex::wait(&self.phase, phase as u32, None);
    }

    /// The program has taken on other credentials than the agents have; how often it has.
    pub fn count_change(&self) -> u32 {
        self.changes.fetch_add(1, Relaxed) + 1
    }

    /// The engine belongs to the calling process from now on.
    pub fn come_home(&self) {
        self.process.store(thread::current_pid(), Relaxed);
    }

    /// Whether the calling thread is one of the process that the engine belongs to.
    pub fn is_at_home(&self) -> bool {
        self.process.load(Relaxed) == thread::current_pid()
    }

    /// A thread of the program is about to end past libc, with this status.
    fn note_leaving(&self, status: u32) {
        self.last_status.store(status, Relaxed);
        self.leaving.store(1, Release);
    }

    /// Whether one has said so since this was last asked.
    pub fn take_leaving(&self) -> bool {
        self.leaving.swap(0, AcqRel) != 0
    }

    /// What the last of them ended with.
    pub fn last_status(&self) -> u32 {
        self.last_status.load(Relaxed)
    }

    /// The engine belongs to the calling process, a forked child, of which no thread has said that it ends.
    pub fn come_home_in_child(&self) {
        self.come_home();
        self.leaving.store(0, Relaxed);
        self.last_status.store(0, Relaxed);
    }
}

impl Engine {
    /// Lets the engine start by itself once there is enough to manage.
    pub fn enable(&'static self) {
        self.lifecycle.enabled.store(1, Release);
        self.start_if_due();
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.lifecycle.phase()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.lifecycle.set_phase(phase);
    }

    /// See [`Lifecycle::change_phase`].
    pub(crate) fn change_phase(&self, from: Phase, to: Phase) -> bool {
        self.lifecycle.change_phase(from, to)
    }

    /// Sleeps while the phase is `phase`.
    pub(crate) fn wait_for_phase_after(&self, phase: Phase) {
        self.lifecycle.wait_for_phase_after(phase);
    }

    /// Whether the calling thread is one of the process that the engine belongs to.
    pub fn is_at_home(&self) -> bool {
        self.lifecycle.is_at_home()
    }

    /// Remembers why it is being stopped.
    pub(crate) fn set_stop_reason(&self, reason: &'static &'static str) {
        self.lifecycle.stop_reason.store(reason as *const &str as *mut &str, Relaxed);
    }

    /// Why it is being stopped.
    pub(crate) fn stop_reason(&self) -> &'static str {
        // SAFETY: null or a static reference.
        unsafe { self.lifecycle.stop_reason.load(Relaxed).as_ref() }.copied().unwrap_or("stopped on request")
    }

    /// Marks the engine as off, and says on the control page why.
    pub(crate) fn turn_off(&self, reason: &str) {
        let control = self.control();
        control.reason.set(reason);
        control.mode.store(Mode::Off as u32, Release);
        self.show_control();
        self.set_phase(Phase::Off);
    }

    /// Closes what the engine opened at the kernel.
    ///
    /// # Safety
    /// Nothing is away, the fault thread has ended or does not exist, and no thread uses [`Engine::kernel`].
    pub(crate) unsafe fn close_kernel(&self) {
        self.link.gauges.close();
        // SAFETY: the caller's contract.
        unsafe { *self.link.kernel_mut() = None };
    }

    /// A forked child of which nothing is away needs no threads before there is work for them.
    pub(crate) fn be_idle_in_child(&'static self) {
        // SAFETY: the only thread of the process.
        if let Some(kernel) = unsafe { self.link.kernel_mut() }.take() {
            kernel.forget_in_child();
        }
        self.forget_threads_in_child();
        for extent in self.space().all() {
            extent.armed.remove(&crate::tables::bitmap::PageSet::ALL);
            extent.staging.store(0, Relaxed);
        }
        self.lifecycle.phase.store(Phase::Idle as u32, Release);
        let _ = self.count_for_nobody();
    }

    /// Starts the background thread if the engine is enabled, idle, and has enough to manage. From any
    /// thread, in any place: it makes a few system calls and takes no lock.
    pub fn start_if_due(&'static self) {
        self.try_start();
        // What is touched before first touches are reported may be any amount.
        while self.is_limited() && self.phase() == Phase::Starting {
            self.wait_for_phase_after(Phase::Starting);
        }
    }

    fn try_start(&'static self) {
        if self.lifecycle.enabled.load(Acquire) == 0 || self.phase() != Phase::Idle {
            return;
        }
        let known = self.counts.managed.load(Relaxed) + self.tables.young.bytes();
        let enough = known != 0 && known >= self.setting(Setting::StartAt);
        // Where nobody tells of memory, it is found by the thread that is to be started.
        if !enough && !self.traffic.goes_by_reports() {
            return;
        }
        // A child of `vfork` works in its parent's memory: threads that it makes would end with it.
        if !self.is_at_home() {
            return;
        }
        // A fork must find the engine either idle or starting with its thread made.
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        if !self.change_phase(Phase::Idle, Phase::Starting) {
            return;
        }
        if let Err(e) = self.spawn_background() {
            self.give_up("no thread for the pager", Some(e));
        }
    }

    /// Makes the background thread, which opens what it needs and makes the fault thread.
    pub(crate) fn spawn_background(&'static self) -> Result<()> {
        self.agents.note_maker();
        // SAFETY: `background::main` keeps to the rules of agent threads.
        let thread = unsafe { Thread::spawn(background::main, self as *const Engine as usize) }?;
        // A handler that stops the engine waits for this thread's work to be done, and must not find the lock held.
        let _blocked = signal::block_all();
        self.agents.note(Agent::Background, thread);
        Ok(())
    }

    /// Ends an engine that could not begin, and says why.
    pub(crate) fn give_up(&self, what: &str, error: Option<Errno>) {
        let mut line = crate::text::Line::new();
        line.push(what);
        if let Some(e) = error {
            line.push(": ");
            line.push(e.name());
        }
        self.turn_off(line.as_str());
        let mut message = crate::text::Line::new();
        message.push("memfold: not folding this program: ");
        message.push(line.as_str());
        message.push(" (`memfold doctor` tells more)");
        self.notify(message.as_str());
    }

    /// Opens what the engine needs. The background thread calls it.
    pub(crate) fn open_kernel(&self) -> core::result::Result<(), Missing> {
        // SAFETY: its number in the table of this thread, who alone has that.
        let pagemap = self.link.pagemap().map(|number| Pagemap::handed_over(unsafe { Fd::from_raw(number) }));
        let kernel =
            Kernel::open(self.link.device(), self.traffic.goes_by_reports(), self.link.made(), pagemap)?;
        self.tables.tell_staging(&kernel.staging);
        // SAFETY: no other thread looks before it is started.
        unsafe { *self.link.kernel_mut() = Some(kernel) };
        Ok(())
    }

    /// The same again for what a forked child cannot share with its parent, as [`Kernel::reopen_in_child`]. By the one thread of the process that is not
    /// waiting.
    pub(crate) fn reopen_kernel_in_child(&self) -> core::result::Result<Option<Missing>, Missing> {
        // SAFETY: nobody else looks.
        let kernel = unsafe { self.link.kernel_mut() }.as_mut();
        kernel
            .ok_or(("no userfaultfd of its parent's", Errno(libc::EBADF)))?
            .reopen_in_child(self.link.device())
    }

    /// Makes the threads that serve the program, by the background thread, whose descriptors they share. On an error none is left
    /// to be ended but by [`Engine::end_servants`].
    pub(crate) fn spawn_servants(&'static self) -> Result<()> {
        let arg = self as *const Engine as usize;
        // SAFETY: `service::main` keeps to the rules of agent threads.
        let fault = unsafe { Thread::spawn(service::main, arg) }?;
        self.agents.set_tid(Agent::Fault, fault.tid());
        self.agents.note(Agent::Fault, fault);
        self.proxy.open();
        // SAFETY: `proxy::server::main` keeps to the rules of agent threads.
        match unsafe { Thread::spawn(proxy::server::main, arg) } {
            Ok(thread) => {
                self.agents.set_tid(Agent::Proxy, thread.tid());
                self.agents.note(Agent::Proxy, thread);
            }
            Err(error) => {
                self.proxy.close();
                return Err(error);
            }
        }
        self.helpers.set_cpus(CpuSet::of_current_thread().map_or(1, |set| set.len()));
        self.make_helper(helpers::FIRST)?;
        if self.below().is_some() {
            self.spawn_tier()?;
        }
        Ok(())
    }

    /// Makes the thread of the tier, by the background thread.
    pub(crate) fn spawn_tier(&'static self) -> Result<()> {
        // SAFETY: `tier::thread::main` keeps to the rules of agent threads.
        let tier = unsafe { Thread::spawn(tier::thread::main, self as *const Engine as usize) }?;
        self.agents.set_tid(Agent::Tier, tier.tid());
        self.agents.note(Agent::Tier, tier);
        Ok(())
    }

    /// Has the threads that serve the program end, and waits for that. By the background thread, while nobody needs them.
    pub(crate) fn end_servants(&self, kernel: &Kernel) {
        self.end_helpers();
        self.proxy.close();
        if let (Some(tier), Some(below)) = (self.agents.take(Agent::Tier), self.below()) {
            below.end();
            tier.join();
            self.agents.set_tid(Agent::Tier, 0);
        }
        if let Some(proxy) = self.agents.take(Agent::Proxy) {
            proxy.join();
        }
        if let Some(fault) = self.agents.take(Agent::Fault) {
            self.ring_doorbell(kernel);
            fault.join();
        }
    }

    /// The kernel's number of an agent thread, once it runs.
    pub(crate) fn tid(&self, agent: Agent) -> Option<u32> {
        self.agents.tid(agent)
    }

    /// Forgets the threads that a forked child does not have.
    pub(crate) fn forget_threads_in_child(&self) {
        self.agents.forget_in_child();
        self.proxy.reset_in_child();
        self.link.gauges.forget_in_child();
    }

    /// A thread of the program is about to end past libc, with this status, and may be the last: the pager's threads must end
    /// then too.
    pub fn thread_leaves(&'static self, status: u32) {
        if self.is_at_home() {
            if let Some(kernel) = self.kernel() {
                kernel.life.thread_leaves();
            }
            self.lifecycle.note_leaving(status);
            self.ring();
        }
    }

    /// Waits for the agent threads to leave, after they were told to.
    pub(crate) fn join_threads(&self) {
        // A handler that waits for them too must not find the lock held by the thread that it interrupted.
        let _blocked = signal::block_all();
        self.agents.join_all();
    }
}
