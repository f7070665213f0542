//! How the engine starts and ends: its phases, and the agent threads.
//!
//! Invariants: one thread at a time starts or ends the engine, by `phase`; a fork finds the engine either idle or starting with its
//! thread made.

use super::{Engine, Phase};
use crate::config::Setting;
use crate::control::Mode;
use crate::kernel::Kernel;
use crate::{background, fault};
use core::sync::atomic::Ordering::*;
use sys::thread::Thread;
use sys::{futex, Result};

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
        self.list_descriptors(None);
        self.close_gauges();
        // SAFETY: the caller's contract.
        unsafe { *self.kernel_mut() = None };
    }

    /// A forked child of which nothing is away needs no threads before there is work for them.
    pub(crate) fn be_idle_in_child(&'static self) {
        // SAFETY: the only thread of the process, and nothing is away.
        let threads = unsafe {
            self.close_kernel();
            &mut *self.threads.get()
        };
        for thread in [threads.fault.take(), threads.background.take()].into_iter().flatten() {
            thread.forget_in_child();
        }
        for extent in self.space().all() {
            extent.armed.remove(&crate::bitmap::PageSet::range(0, sys::EXTENT_PAGES));
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
        if self.enabled.load(Acquire) == 0
            || self.phase.load(Relaxed) != Phase::Idle as u32
            || self.managed.load(Relaxed) < self.setting(Setting::StartAt)
            || self.managed.load(Relaxed) == 0
        {
            return;
        }
        // A fork must find the engine either idle or starting with its thread made.
        let _blocked = sys::signal::block_all();
        let _pass = self.gate.pass();
        if self.phase.compare_exchange(Phase::Idle as u32, Phase::Starting as u32, AcqRel, Relaxed).is_err() {
            return;
        }
        if let Err(e) = self.spawn_background() {
            self.give_up("no thread for the pager", Some(e));
        }
    }

    /// Makes the background thread, which opens what it needs and makes the fault thread.
    fn spawn_background(&'static self) -> Result<()> {
        // SAFETY: `background::main` keeps to the rules of agent threads.
        let thread = unsafe { Thread::spawn(background::main, self as *const Engine as usize) }?;
        // SAFETY: the phase is `Starting`, which one thread at a time reaches.
        unsafe { (*self.threads.get()).background = Some(thread) };
        Ok(())
    }

    /// Ends an engine that could not begin, and says why.
    pub(crate) fn give_up(&self, what: &str, error: Option<sys::Errno>) {
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

    /// Opens what the engine needs and starts the fault thread; the background thread calls it, or a forked
    /// child's only thread.
    pub(crate) fn open_kernel(&'static self) -> core::result::Result<(), (&'static str, sys::Errno)> {
        let kernel = Kernel::open(self.device())?;
        // SAFETY: no agent thread looks before it is started below, and program threads only once running.
        unsafe { *self.kernel_mut() = Some(kernel) };
        self.list_descriptors(self.kernel());
        Ok(())
    }

    /// The same again for what a forked child cannot share with its parent. Only thread of the process.
    pub(crate) fn reopen_kernel_in_child(&self) -> bool {
        // SAFETY: the only thread of the process.
        let reopened = match unsafe { self.kernel_mut() } {
            Some(kernel) => kernel.reopen_in_child(self.device()).is_ok(),
            None => false,
        };
        self.list_descriptors(self.kernel());
        reopened
    }

    pub(crate) fn spawn_fault(&'static self) -> Result<()> {
        // SAFETY: `fault::main` keeps to the rules of agent threads.
        let thread = unsafe { Thread::spawn(fault::main, self as *const Engine as usize) }?;
        // SAFETY: only the thread that starts the engine comes here.
        unsafe { (*self.threads.get()).fault = Some(thread) };
        Ok(())
    }

    /// The kernel's numbers of the fault and the background thread.
    pub(crate) fn thread_ids(&self) -> (Option<u32>, Option<u32>) {
        // SAFETY: written before the engine runs; read by agent threads afterwards.
        let threads = unsafe { &*self.threads.get() };
        (threads.fault.as_ref().map(Thread::tid), threads.background.as_ref().map(Thread::tid))
    }

    /// Forgets the threads that a forked child does not have, and starts its own.
    pub(crate) fn restart_in_child(&'static self) -> Result<()> {
        // SAFETY: the only thread of the process.
        let threads = unsafe { &mut *self.threads.get() };
        for thread in [threads.fault.take(), threads.background.take()].into_iter().flatten() {
            thread.forget_in_child();
        }
        let _ = self.count_for_nobody();
        self.spawn_fault()?;
        self.set_phase(Phase::Starting);
        self.spawn_background()
    }

    /// Whether there is a fault thread. For who starts or ends the engine.
    pub(crate) fn has_fault_thread(&self) -> bool {
        // SAFETY: one thread at a time starts or ends the engine.
        unsafe { (*self.threads.get()).fault.is_some() }
    }

    /// Waits for the fault thread to leave, after it was told to. Background thread, or a forked child's only thread.
    pub(crate) fn join_fault(&self) {
        // SAFETY: the phase is `Stopping`, and who waits for its end does not look before; or nobody else is there.
        if let Some(thread) = unsafe { (*self.threads.get()).fault.take() } {
            thread.join();
        }
    }

    /// Waits for the agent threads to leave, after they were told to.
    pub(crate) fn join_threads(&self) {
        let _guard = self.joining.lock();
        // SAFETY: under the lock, and the engine is off: no thread of it looks any more.
        let threads = unsafe { &mut *self.threads.get() };
        for thread in [threads.fault.take(), threads.background.take()].into_iter().flatten() {
            thread.join();
        }
    }
}
