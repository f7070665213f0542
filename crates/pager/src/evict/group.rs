//! The limit that control groups set on the process: kept once it comes near, so that a container is folded before it is killed.
//!
//! While little of the group's limit is in use, nothing of this costs anything. Once a part of it is in use and more could be, a limit on
//! resident memory is kept ([`crate::evict::limit`]): the group's but for a margin, less what its other processes have. As that comes near, what is
//! cold goes sooner, and folding takes the CPU that it needs.
//!
//! Background thread only.

mod watching;

use memfold_sys::cgroup::Group;
use memfold_sys::time::Nanos;

pub(crate) const COLD_AGE_PRESSED: Nanos = Nanos::from_secs(1);

/// What is known of the group.
pub(crate) struct Watch {
    group: Option<Group>,
    found_at: Option<Nanos>,
    /// What its other processes have, bytes.
    others: u64,
    counted_at: Nanos,
    pressed: bool,
}

impl Watch {
    pub(crate) const fn new() -> Watch {
        Watch { group: None, found_at: None, others: 0, counted_at: Nanos(0), pressed: false }
    }

    /// Whether the limit is near: what is cold should go sooner, whatever it costs.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed
    }
}
