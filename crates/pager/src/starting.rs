//! How the engine starts and ends, and the agent threads.
//!
//! Invariants: one thread at a time starts or ends the engine, by its phase; a fork finds the engine either idle or starting with its
//! thread made.

use crate::changes::proxy;
use crate::config::Setting;
use crate::control::Mode;
use crate::engine::{Agent, Engine, Phase};
use crate::evict::background;
use crate::fault::{helpers, service};
use crate::kernel::{Kernel, Missing};
use crate::tables::bitmap::PageSet;
use crate::tier;
use core::sync::atomic::Ordering::*;
use memfold_sys::file::Fd;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::thread::{CpuSet, Thread};
use memfold_sys::{signal, Errno, Result};

impl Engine {
    /// Lets the engine start by itself once there is enough to manage.
    pub fn enable(&'static self) {
        self.lifecycle.enable();
        self.start_if_due();
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.lifecycle.phase()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.lifecycle.set_phase(phase);
    }

    /// From one phase to another; false when it is not in the first.
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
        self.lifecycle.set_stop_reason(reason);
    }

    /// Why it is being stopped.
    pub(crate) fn stop_reason(&self) -> &'static str {
        self.lifecycle.stop_reason()
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
            extent.armed.remove(&PageSet::ALL);
            extent.staging.store(0, Relaxed);
        }
        self.lifecycle.be_idle_in_child();
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
        if !self.lifecycle.is_enabled() || self.phase() != Phase::Idle {
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
