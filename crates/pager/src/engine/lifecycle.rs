//! How far the engine has come between its start and its end.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use memfold_sys::{futex, thread};

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

    /// It may start by itself from now on.
    pub fn enable(&self) {
        self.enabled.store(1, Release);
    }

    /// Whether it may.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Acquire) != 0
    }

    /// Remembers why it is being stopped.
    pub fn set_stop_reason(&self, reason: &'static &'static str) {
        self.stop_reason.store(reason as *const &str as *mut &str, Relaxed);
    }

    /// Why it is being stopped.
    pub fn stop_reason(&self) -> &'static str {
        // SAFETY: null or a static reference.
        unsafe { self.stop_reason.load(Relaxed).as_ref() }.copied().unwrap_or("stopped on request")
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

    /// It has not begun, in a forked child, where nobody waits for that.
    pub fn be_idle_in_child(&self) {
        self.phase.store(Phase::Idle as u32, Release);
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
    pub fn note_leaving(&self, status: u32) {
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
