//! Processes that want to be under the daemon's budget: how the daemon sees them.
//!
//! What it is not: how they are found and told; that is for whoever implements [`Fleet`].

use crate::budget::Load;
use crate::counters::Counters;
use crate::tier::Part;

/// Such a process, as it said it is.
#[derive(Clone, Copy, Debug)]
pub struct Governed {
    /// Its number.
    pub pid: u32,
    /// What it keeps, what it has folded, and its limit.
    pub load: Load,
    /// What it has of the tier that the daemon shares out; `None` where it uses none, or has its own.
    pub tier: Option<Part>,
    /// Its counters.
    pub counters: Counters,
}

/// All such processes.
pub trait Fleet: Send {
    /// Those that there are now; the time waited is a total.
    fn look(&mut self) -> Vec<Governed>;
    /// Grants the process among those last seen that has this number as many bytes of memory, for the next few seconds, and of the tier, until another
    /// word.
    fn grant(&mut self, pid: u32, bytes: u64, tier_bytes: u64);
}
