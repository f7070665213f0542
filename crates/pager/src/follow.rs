//! Following the faulting thread from CPU to CPU.
//!
//! To wake a thread that sleeps on an idle CPU takes an interrupt between processors, which under virtualisation
//! costs more than all the rest of a fault. The fault thread therefore moves to the CPU that the program's thread
//! ran on last: the next fault then wakes a thread on its own CPU.

use crate::engine::Engine;
use sys::thread::CpuSet;

/// Keeps the fault thread near the program's.
pub struct Follower {
    /// Where the fault thread is bound to, if it is.
    cpu: Option<u32>,
}

impl Follower {
    /// Runs anywhere at first.
    pub fn new() -> Follower {
        Follower { cpu: None }
    }

    /// A fault of thread `tid` is being served: goes where that thread is.
    pub fn follow(&mut self, engine: &Engine, tid: u32) {
        let Some(cpu) = engine.thread_cpu(tid) else { return };
        if self.cpu != Some(cpu) && CpuSet::only(cpu).apply().is_ok() {
            self.cpu = Some(cpu);
        }
    }
}
