//! What the daemon tells of a process.

/// What is shown of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that may be folded.
    pub managed_bytes: u64,
    /// Of those the ones in memory as they are.
    pub resident_bytes: u64,
    /// Of those the folded ones.
    pub evicted_bytes: u64,
    /// Bytes of the store.
    pub stored_bytes: u64,
    /// Pages tried to be compressed.
    pub compressed: u64,
    /// Pages brought back.
    pub restored: u64,
    /// First touches served.
    pub zeroed: u64,
    /// Waits for folded memory, ns.
    pub stall_ns: u64,
    /// CPU time spent on it, ns.
    pub cpu_ns: u64,
}
