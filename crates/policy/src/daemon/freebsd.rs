//! FreeBSD's page daemon.

use super::queues::{End, FourQueues, Parameters, Rules};

/// FreeBSD's page daemon (FreeBSD 12, 2018, `vm_pageout.c`): an activity count of 5 at first, plus 3 and the number of
/// references when a scan finds the page referenced, minus 1 when not, 64 at most; what has none left becomes inactive,
/// has a second chance there, and is freed, or cleaned first. Pages enter the inactive and the free queue at the tail.
///
/// Parameters: `free`, the part of the limit that should be free (0.02), and `period`, in which every active page is
/// looked at, in seconds (600).
pub type FreeBsd = FourQueues<Original>;

/// What the original does.
pub struct Original;

impl Rules for Original {
    fn decay(&mut self, activity: u8) -> u8 {
        activity.saturating_sub(1)
    }

    fn end(&mut self) -> End {
        End::Tail
    }
}

impl FreeBsd {
    /// For page numbers below `universe`.
    pub fn freebsd(parameters: Parameters, universe: usize) -> FreeBsd {
        FourQueues::new(Original, parameters, universe)
    }
}
