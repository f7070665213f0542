//! Keeping a limit on resident memory: the background thread's half of [`crate::fault::room`].
//!
//! What counts is the process's anonymous memory as the kernel counts it: pages of the program, managed or not, what is set
//! aside, the store, and the pager's own. When it comes near the limit, pages are evicted in the order of CLOCK (F. J.
//! Corbató, "A paging experiment with the Multics system", 1968): the hand goes round the extents, passes pages that were
//! written or came back since it was last there, and takes the others. When two rounds gain nothing it takes what it finds.
//! When that gains nothing either, no more can be had: what is resident then, the compressed pages above all and those that
//! cannot be compressed, is the base, and the program gets a part of the limit above it, for as long as it takes.
//!
//! What it is not: a policy for memory below the limit, which goes by its age all the same; nor `--policy`, under which nobody
//! waits: a page daemon is given the limit for the managed pages, and what it then does is what is studied.
//!
//! Background thread only. It tries locks of extents, and takes no more pages at once than the limit can bear twice.

mod keeping;

use crate::fault::room::TurnedAway;
use crate::tables::bitmap::PageSet;
use memfold_sys::time::Nanos;

/// Where the hand is.
pub(crate) struct Hand {
    at: usize,
    /// Extents at which nothing was gained, one after the other.
    in_vain: usize,
    /// What was resident when nothing more could be evicted, pages; 0 where that never was.
    base: u64,
    base_at: Nanos,
    /// Who had been turned away when everybody was last woken.
    released: TurnedAway,
    told: bool,
    /// Whether there is not as much room as there should be.
    pub(crate) needs_room: bool,
    /// What is to go of the extent at the hand, and whether anything has gone.
    plan: PageSet,
    gained: bool,
    armed_at: Nanos,
}

impl Hand {
    pub(crate) const fn new() -> Hand {
        Hand {
            at: 0,
            in_vain: 0,
            base: 0,
            base_at: Nanos(0),
            released: TurnedAway { threads: 0, since: 0 },
            told: false,
            needs_room: false,
            plan: PageSet::EMPTY,
            gained: false,
            armed_at: Nanos(0),
        }
    }
}
