//! How many mappings the process has, against how many the kernel allows it (`vm.max_map_count`).
//!
//! The kernel keeps a range apart that is registered, and registers extent by extent: where one is and its neighbour is not, a mapping is
//! cut in two. A program that has nearly as many mappings as it may would be refused others because of that. So where they are scarce, all
//! managed memory is registered in the same way, and the kernel joins the pieces: then only the pager's own mappings count, some tens.
//! It costs the program a round trip through the fault thread for each page that it touches for the first time.
//!
//! What it is not: what counts and registers ([`crate::changes::joining`]).

use crate::sync::{AtomicU32, Ordering::*};
use memfold_sys::time::Nanos;

/// The shortest time from one count to the next, and the longest share of the time that counting takes.
const PAUSE: Nanos = Nanos::from_secs(2);
const SHARE: u64 = 500;
/// What the kernel allows where it does not tell: its default.
pub(crate) const MOST: u64 = 65_530;

/// What is known of it. All zeros is that there are few.
#[derive(Debug)]
pub(crate) struct Pieces {
    scarce: AtomicU32,
    asked: AtomicU32,
    answered: AtomicU32,
    /// Whether the last answer was that pieces were joined.
    joined: AtomicU32,
}

impl Pieces {
    /// There are few.
    pub(crate) const fn new() -> Pieces {
        Pieces {
            scarce: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            joined: AtomicU32::new(0),
        }
    }

    /// Whether all managed memory is to be registered in the same way.
    pub(crate) fn are_scarce(&self) -> bool {
        self.scarce.load(Relaxed) != 0
    }

    /// So many mappings there are of so many that may be. What is scarce stays so until there are half as many.
    pub(crate) fn counted(&self, count: u64, most: u64) {
        let bound = if self.are_scarce() { most / 2 } else { most / 4 * 3 };
        self.scarce.store(u32::from(count >= bound), Relaxed);
    }

    /// Asks for pieces to be joined; the ticket.
    pub(crate) fn ask(&self) -> u32 {
        self.asked.fetch_add(1, AcqRel).wrapping_add(1)
    }

    /// The answer to this question or a later one.
    pub(crate) fn answer_to(&self, ticket: u32) -> Option<bool> {
        let late = self.answered.load(Acquire).wrapping_sub(ticket) as i32;
        (late >= 0).then(|| self.joined.load(Relaxed) != 0)
    }

    /// The last question that was not answered yet.
    pub(crate) fn question(&self) -> Option<u32> {
        let asked = self.asked.load(Acquire);
        (asked != self.answered.load(Relaxed)).then_some(asked)
    }

    /// Answers it.
    pub(crate) fn answer(&self, ticket: u32, joined: bool) {
        self.joined.store(u32::from(joined), Relaxed);
        self.answered.store(ticket, Release);
    }
}

/// Whether a call may have failed for so many mappings.
pub(crate) fn may_have_run_out(count: u64, most: u64) -> bool {
    count >= most - most / 8
}

/// When mappings are counted next.
#[derive(Clone, Copy)]
pub(crate) struct Schedule(Nanos);

impl Schedule {
    /// Of a background thread that begins at `now`.
    pub(crate) fn new(now: Nanos) -> Schedule {
        Schedule(now + PAUSE)
    }

    /// Whether they are to be counted now.
    pub(crate) fn is_due(self, now: Nanos) -> bool {
        now >= self.0
    }

    /// They were counted at `now`, which took so long.
    pub(crate) fn counted(&mut self, now: Nanos, took: Nanos) {
        self.0 = now + PAUSE.max(Nanos(took.0.saturating_mul(SHARE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_scarce_from_three_quarters_of_the_limit_on_until_half_of_it() {
        let pieces = Pieces::new();
        let mut scarce = |count| {
            pieces.counted(count, 1000);
            pieces.are_scarce()
        };
        assert_eq!(
            [0, 749, 750, 600, 500, 499, 600, 750].map(&mut scarce),
            [false, false, true, true, true, false, false, true]
        );
    }

    #[test]
    fn every_question_has_the_answer_to_it_or_to_a_later_one() {
        let pieces = Pieces::new();
        assert_eq!(pieces.question(), None);
        let (first, second) = (pieces.ask(), pieces.ask());
        assert_eq!((pieces.question(), pieces.answer_to(first)), (Some(second), None));
        pieces.answer(second, true);
        assert_eq!((pieces.answer_to(first), pieces.answer_to(second)), (Some(true), Some(true)));
        let third = pieces.ask();
        assert_eq!((pieces.question(), pieces.answer_to(third)), (Some(third), None));
    }

    #[test]
    fn counting_takes_a_small_share_of_the_time() {
        let mut schedule = Schedule::new(Nanos(0));
        assert!(!schedule.is_due(Nanos(1)) && schedule.is_due(PAUSE));
        schedule.counted(PAUSE, Nanos::from_millis(50));
        assert!(!schedule.is_due(Nanos::from_secs(26)) && schedule.is_due(Nanos::from_secs(27)));
    }
}
