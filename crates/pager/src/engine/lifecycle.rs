//! How the engine starts and ends: its phases, and the agent threads.
//!
//! Invariants: one thread at a time starts or ends the engine, by `phase`; a fork finds the engine either idle or starting with its
//! thread made.

use super::{Agent, Engine, Phase};
use crate::config::Setting;
use crate::control::Mode;
use crate::kernel::Kernel;
use crate::{background, fault, proxy, tier};
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::Thread;
use memfold_sys::{futex, Result};

impl Engine {
    /// Lets the engine start by itself once there is enough to manage.
    pub fn enable(&'static self) {
        self.enabled.store(1, Release);
        self.start_if_due();
    }

    /// From one phase to another; false when it is not in the first.
    pub(crate) fn change_phase(&self, from: Phase, to: Phase) -> bool {
        let changed = self.phase.compare_exchange(from as u32, to as u32, AcqRel, Relaxed).is_ok();
        if changed {
            futex::wake(&self.phase, u32::MAX >> 1);
        }
        changed
    }

    /// Remembers why it is being stopped.
    pub(crate) fn set_stop_reason(&self, reason: &'static &'static str) {
        self.stop_reason.store(reason as *const &str as *mut &str, Relaxed);
    }

    /// Why it is being stopped.
    pub(crate) fn stop_reason(&self) -> &'static str {
        // SAFETY: null or a static reference.
        unsafe { self.stop_reason.load(Relaxed).as_ref() }.copied().unwrap_or("stopped on request")
    }

    /// Marks the engine as off, and says on the control page why.
    pub(crate) fn turn_off(&self, reason: &str) {
        let control = self.control();
        control.reason.set(reason);
        control.mode.store(Mode::Off as u32, Release);
        self.show_control();
        self.set_phase(Phase::Off);
    }

    /// Sleeps while the phase is `phase`.
    pub(crate) fn wait_for_phase_after(&self, phase: Phase) {
        let _ = futex::wait(&self.phase, phase as u32, None);
    }

    /// Closes what the engine opened at the kernel.
    ///
    /// # Safety
    /// Nothing is away, the fault thread has ended or does not exist, and no thread uses [`Engine::kernel`].
    pub(crate) unsafe fn close_kernel(&self) {
        self.close_gauges();
        // SAFETY: the caller's contract.
        unsafe { *self.kernel_mut() = None };
    }

    /// A forked child of which nothing is away needs no threads before there is work for them.
    pub(crate) fn be_idle_in_child(&'static self) {
        // SAFETY: the only thread of the process.
        if let Some(kernel) = unsafe { self.kernel_mut() }.take() {
            kernel.forget_in_child();
        }
        self.forget_threads_in_child();
        for extent in self.space().all() {
            extent.armed.remove(&crate::bitmap::PageSet::range(0, memfold_sys::EXTENT_PAGES));
            extent.staging.store(0, Relaxed);
        }
        self.phase.store(Phase::Idle as u32, Release);
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
        if self.enabled.load(Acquire) == 0 || self.phase.load(Relaxed) != Phase::Idle as u32 {
            return;
        }
        let known = self.managed.load(Relaxed) + self.young.bytes();
        if known < self.setting(Setting::StartAt) || known == 0 {
            return;
        }
        // A child of `vfork` works in its parent's memory: threads that it makes would end with it.
        if !self.is_at_home() {
            return;
        }
        // A fork must find the engine either idle or starting with its thread made.
        let _blocked = memfold_sys::signal::block_all();
        let _pass = self.gate.pass();
        if self.phase.compare_exchange(Phase::Idle as u32, Phase::Starting as u32, AcqRel, Relaxed).is_err() {
            return;
        }
        if let Err(e) = self.spawn_background() {
            self.give_up("no thread for the pager", Some(e));
        }
    }

    /// Makes the background thread, which opens what it needs and makes the fault thread.
    pub(crate) fn spawn_background(&'static self) -> Result<()> {
        // SAFETY: `background::main` keeps to the rules of agent threads.
        let thread = unsafe { Thread::spawn(background::main, self as *const Engine as usize) }?;
        // SAFETY: the phase is `Starting`, which one thread at a time reaches.
        unsafe { *self.threads.background.get() = Some(thread) };
        Ok(())
    }

    /// Ends an engine that could not begin, and says why.
    pub(crate) fn give_up(&self, what: &str, error: Option<memfold_sys::Errno>) {
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
    pub(crate) fn open_kernel(&self) -> core::result::Result<(), (&'static str, memfold_sys::Errno)> {
        let kernel = Kernel::open(self.device())?;
        self.tell_staging(&kernel.staging);
        // SAFETY: no other thread looks before it is started.
        unsafe { *self.kernel_mut() = Some(kernel) };
        Ok(())
    }

    /// The same again for what a forked child cannot share with its parent. By the one thread of the process that is not waiting.
    pub(crate) fn reopen_kernel_in_child(&self) -> bool {
        // SAFETY: nobody else looks.
        match unsafe { self.kernel_mut() } {
            Some(kernel) => kernel.reopen_in_child(self.device()).is_ok(),
            None => false,
        }
    }

    /// Makes the threads that serve the program, by the background thread, whose descriptors they share. On an error none is left
    /// to be ended but by [`Engine::end_servants`].
    pub(crate) fn spawn_servants(&'static self) -> Result<()> {
        let arg = self as *const Engine as usize;
        // SAFETY: `fault::main` keeps to the rules of agent threads.
        let fault = unsafe { Thread::spawn(fault::main, arg) }?;
        self.number_agent(Agent::Fault, fault.tid());
        // SAFETY: only the thread that starts the engine comes here.
        unsafe { *self.threads.fault.get() = Some(fault) };
        self.proxy.open();
        // SAFETY: `proxy::server::main` keeps to the rules of agent threads.
        match unsafe { Thread::spawn(proxy::server::main, arg) } {
            Ok(thread) => {
                self.number_agent(Agent::Proxy, thread.tid());
                // SAFETY: as above.
                unsafe { *self.threads.proxy.get() = Some(thread) };
            }
            Err(error) => {
                self.proxy.close();
                return Err(error);
            }
        }
        if self.below().is_some() {
            // SAFETY: `tier::thread::main` keeps to the rules of agent threads.
            let tier = unsafe { Thread::spawn(tier::thread::main, arg) }?;
            self.number_agent(Agent::Tier, tier.tid());
            // SAFETY: as above.
            unsafe { *self.threads.tier.get() = Some(tier) };
        }
        Ok(())
    }

    /// Has the threads that serve the program end, and waits for that. By the background thread, while nobody needs them.
    pub(crate) fn end_servants(&self, kernel: &Kernel) {
        self.proxy.close();
        // SAFETY: one thread at a time starts or ends the engine.
        let (proxy, fault) = unsafe { (&mut *self.threads.proxy.get(), &mut *self.threads.fault.get()) };
        // SAFETY: as above.
        let tier = unsafe { &mut *self.threads.tier.get() };
        if let (Some(tier), Some(below)) = (tier.take(), self.below()) {
            below.end();
            tier.join();
            self.number_agent(Agent::Tier, 0);
        }
        if let Some(proxy) = proxy.take() {
            proxy.join();
        }
        if let Some(fault) = fault.take() {
            self.ring_doorbell(kernel);
            fault.join();
        }
    }

    /// Remembers the kernel's number of an agent thread.
    pub(crate) fn number_agent(&self, agent: Agent, tid: u32) {
        self.tids[agent as usize].store(tid, Relaxed);
    }

    /// The kernel's number of an agent thread, once it runs.
    pub(crate) fn tid(&self, agent: Agent) -> Option<u32> {
        Some(self.tids[agent as usize].load(Relaxed)).filter(|&tid| tid != 0)
    }

    /// The engine belongs to the calling process, a forked child, from now on.
    pub(crate) fn come_home_in_child(&self) {
        self.process.store(memfold_sys::thread::current_pid(), Relaxed);
        self.leaving.store(0, Relaxed);
        self.last_status.store(0, Relaxed);
    }

    /// Forgets the threads that a forked child does not have.
    pub(crate) fn forget_threads_in_child(&self) {
        // SAFETY: the only thread of the process.
        unsafe { self.threads.take() }.for_each(Thread::forget_in_child);
        self.tids.iter().for_each(|tid| tid.store(0, Relaxed));
        self.proxy.reset_in_child();
        self.forget_gauges_in_child();
    }

    /// A thread of the program is about to end past libc, with this status, and may be the last: the pager's threads must end
    /// then too.
    pub fn thread_leaves(&self, status: u32) {
        if self.is_at_home() {
            if let Some(kernel) = self.kernel() {
                kernel.life.thread_leaves();
            }
            self.last_status.store(status, Relaxed);
            self.leaving.store(1, Release);
            self.ring();
        }
    }

    /// Waits for the agent threads to leave, after they were told to.
    pub(crate) fn join_threads(&self) {
        let _guard = self.joining.lock();
        // SAFETY: under the lock, and the engine is off: no thread of it looks any more.
        unsafe { self.threads.take() }.for_each(Thread::join);
    }
}
