//! How much work a page is worth when it is compressed, and whether more work on what is stored would pay.
//!
//! Measured on heaps of redis, python and node: the codec for [`Effort::Once`] takes some 10 to 30 % more time than the one for
//! [`Effort::Least`], and stores half as much of two of the three. The one for [`Effort::Most`] takes half as much time again, and gains a
//! third on the first heap and a twentieth on the others. So it is tried on some pages, and done at once where it gains: to compress a page twice costs
//! as much as both. That holds where CPU time is scarce too: a second of it saves as much memory either way, and with more of it saved for each page there is less
//! left to do.

/// How much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Somebody waits for room.
    Least,
    /// The page has gone cold.
    Once,
    /// The page has stayed cold.
    Most,
}

/// For a page that goes: whether memory is short (`pressed`), and whether the most would `gain` enough over [`Effort::Once`], so that the page would be
/// compressed again later.
pub fn first(pressed: bool, gain: bool) -> Effort {
    match (pressed, gain) {
        (true, _) => Effort::Least,
        (false, false) => Effort::Once,
        (false, true) => Effort::Most,
    }
}

/// One page in so many is compressed both ways, to see what the most gains.
pub const BOTH_ONE_IN: u64 = 32;
/// Pages of which that is seen before it counts.
const SEEN: u64 = 64;

/// Pages of which it is seen what more work gains, before that is judged.
const TRIED: u64 = 512;
/// The least that more work must gain of what is stored, in per cent.
const GAIN: u64 = 8;
/// Where it gains less, one region in so many is tried all the same.
const ONE_IN: u64 = 16;

/// What more work has gained lately, bytes.
#[derive(Clone, Debug, Default)]
pub struct Gains {
    pages: u64,
    before: u64,
    after: u64,
    asked: u64,
}

impl Gains {
    /// Nothing tried yet.
    pub const fn new() -> Gains {
        Gains { pages: 0, before: 0, after: 0, asked: 0 }
    }

    /// A page took `before` bytes, and takes `after` now.
    pub fn note(&mut self, before: u64, after: u64) {
        if self.pages >= 2 * TRIED {
            // What was long ago counts half.
            self.pages /= 2;
            self.before /= 2;
            self.after /= 2;
        }
        self.pages += 1;
        self.before += before;
        self.after += after;
    }

    fn are_enough(&self) -> bool {
        self.before.saturating_sub(self.after) * 100 >= self.before * GAIN
    }

    /// Whether so much was seen to be gained that a page had better be compressed so at once.
    pub fn are_sure(&self) -> bool {
        self.pages >= SEEN && self.are_enough()
    }

    /// Whether the next region is worth more work.
    pub fn are_worth_it(&mut self) -> bool {
        if self.pages < TRIED || self.are_enough() {
            return true;
        }
        self.asked += 1;
        self.asked.is_multiple_of(ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_somebody_waits_little_is_done() {
        assert_eq!([first(false, false), first(false, true)], [Effort::Once, Effort::Most]);
        assert_eq!([first(true, false), first(true, true)], [Effort::Least; 2]);
    }

    #[test]
    fn the_most_is_done_at_once_only_after_it_was_seen_to_gain() {
        let mut gains = Gains::new();
        assert!(!gains.are_sure());
        (1..SEEN).for_each(|_| gains.note(1000, 800));
        assert!(!gains.are_sure());
        gains.note(1000, 800);
        assert!(gains.are_sure());
        (0..2 * TRIED).for_each(|_| gains.note(1000, 950));
        assert!(!gains.are_sure());
    }

    #[test]
    fn what_gains_nothing_is_tried_now_and_then_and_what_gains_again_is_gone_on_with() {
        let mut gains = Gains::new();
        let worth = |gains: &mut Gains| (0..160).filter(|_| gains.are_worth_it()).count();
        assert_eq!(worth(&mut gains), 160);
        (0..TRIED).for_each(|_| gains.note(1000, 950));
        assert_eq!(worth(&mut gains), 10);
        (0..TRIED).for_each(|_| gains.note(1000, 700));
        assert_eq!(worth(&mut gains), 160);
    }
}
