//! What a thread of a loop does, step by step.

/// One thread's part of a pattern.
pub(super) trait Actor {
    /// Steps between two looks at the clock.
    const BATCH: u64 = 1024;
    /// Most calls of the allocator that a step makes.
    const MOST_CALLS: u64 = 1;

    /// Does one step; how often it called the allocator.
    fn step(&mut self) -> u64;

    /// Does a step in which one call is left to make. Where chance decides how many a step makes, it makes that one alone, so
    /// that all allocators do the same work.
    fn last(&mut self) -> u64 {
        self.step()
    }
}
