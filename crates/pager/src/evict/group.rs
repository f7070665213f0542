//! The limit that control groups set on the process: kept once it comes near, so that a container is folded before it is killed.
//!
//! While little of the group's limit is in use, nothing of this costs anything. Once a part of it is in use and more could be, a limit on
//! resident memory is kept ([`crate::evict::limit`]): the group's but for a margin, less what else is charged to it. As that comes near, what is
//! cold goes sooner, and folding takes the CPU that it needs.
//!
//! All processes of a group fill the same room, and none knows what the others were granted. So each looks how much there is before it grants any, and grants no more
//! at once than its part: what all of them may fill before they look again is bounded by what there was, and by the margin.
//!
//! Background thread only.

mod watching;

use memfold_sys::cgroup::{Group, Held};
use memfold_sys::time::Nanos;

pub(crate) const COLD_AGE_PRESSED: Nanos = Nanos::from_secs(1);

/// What is known of the group.
pub(crate) struct Watch {
    group: Option<Group>,
    found_at: Option<Nanos>,
    /// What it has, and how many processes.
    held: Held,
    processes: u64,
    pressed: bool,
}

impl Watch {
    pub(crate) const fn new() -> Watch {
        Watch { group: None, found_at: None, held: Held { firm: 0, mapped: 0 }, processes: 1, pressed: false }
    }

    /// What counts of the limit, bytes.
    fn used(&self) -> u64 {
        self.held.firm + self.held.mapped
    }

    /// Whether the limit is near: what is cold should go sooner, whatever it costs.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed
    }
}
