//! Where, and at what priority, the fault thread runs.
//!
//! To wake a thread that sleeps on an idle CPU takes an interrupt between processors, which under virtualisation
//! costs more than all the rest of a fault. The fault thread therefore moves to the CPU that the program's thread
//! ran on last: the next fault then wakes a thread on its own CPU, and so does the end of the fault, provided that the
//! fault thread is an ordinary one. Beside threads that keep all CPUs busy ([`crate::contention`]), and for several threads that
//! fault by turns, it must be a real-time one instead.

use crate::engine::Engine;
use memfold_sys::thread::{self, CpuSet, Scheduling};
use memfold_sys::time::Nanos;

/// Real-time priority: above every ordinary thread, below whatever else is real-time.
const PRIORITY: i32 = 1;
/// A restore that takes longer than this was interrupted by somebody else's time slice.
const INTERRUPTED: Nanos = Nanos(500_000);

/// For so long after faults of two threads the fault thread must not run in the place of either.
const SEVERAL: Nanos = Nanos::from_secs(1);

/// Keeps the fault thread near the program's.
pub struct Follower {
    /// Where the fault thread is bound to, if it is.
    cpu: Option<u32>,
    real_time: bool,
    /// Real-time priority was refused.
    refused: bool,
    /// A restore was interrupted since the last look.
    interrupted: bool,
    /// The thread that faulted last, and when.
    last: (u32, Nanos),
    /// When two threads last faulted by turns.
    several: Nanos,
}

impl Follower {
    /// Runs anywhere at first, as an ordinary thread.
    pub fn new() -> Follower {
        Follower {
            cpu: None,
            real_time: false,
            refused: false,
            interrupted: false,
            last: (0, Nanos(0)),
            several: Nanos(0),
        }
    }

    /// A fault of thread `tid`, read at `now`, was served: goes where that thread is.
    pub fn follow(&mut self, engine: &Engine, tid: u32, now: Nanos) {
        if let Some(cpu) = engine.thread_cpu(tid) {
            if self.cpu != Some(cpu) && CpuSet::only(cpu).apply().is_ok() {
                self.cpu = Some(cpu);
            }
        }
        if self.last.0 != tid && now.since(self.last.1) < SEVERAL {
            self.several = now;
        }
        self.last = (tid, now);
        // Woken in our place on our CPU, the one thread would keep us from serving the other.
        let several = now.since(self.several) < SEVERAL;
        if core::mem::take(&mut self.interrupted) {
            engine.conditions.set_contended(true);
        }
        self.be_real_time(several || engine.conditions.are_contended());
    }

    /// Whether the fault thread is a real-time one now.
    pub fn is_real_time(&self) -> bool {
        self.real_time
    }

    /// A restore took so long.
    pub fn watch(&mut self, time: Nanos) {
        self.interrupted |= time > INTERRUPTED;
    }

    /// Becomes a real-time thread, if permitted, or an ordinary one.
    fn be_real_time(&mut self, wanted: bool) {
        if wanted == self.real_time || self.refused && wanted {
            return;
        }
        let scheduling =
            if wanted { Scheduling::RealTime { priority: PRIORITY } } else { Scheduling::Normal };
        match thread::set_scheduling(scheduling) {
            Ok(()) => self.real_time = wanted,
            Err(_) => self.refused = true,
        }
    }
}
