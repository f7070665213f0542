//! How much work a page is worth when it is compressed, and whether more work on what is stored would pay.
//!
//! Measured on heaps of redis, python and node: the codec for [`Effort::Once`] takes some 10 to 30 % more time than the one for
//! [`Effort::Least`], and stores half as much of two of the three. The one for [`Effort::Most`] takes half as much time again, and gains a
//! third on the first heap and a twentieth on the others. So it is tried, and gone on with where it gains.

/// How much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Somebody waits for room, or for the CPU.
    Least,
    /// The page has gone cold.
    Once,
    /// The page has stayed cold.
    Most,
}

/// For a page that goes: whether memory is short (`pressed`), and whether there is CPU time to `spare`.
pub fn first(pressed: bool, spare: bool) -> Effort {
    if pressed || !spare {
        Effort::Least
    } else {
        Effort::Once
    }
}

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

    /// Whether the next region is worth more work.
    pub fn are_worth_it(&mut self) -> bool {
        let gained = self.before.saturating_sub(self.after);
        if self.pages < TRIED || gained * 100 >= self.before * GAIN {
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
        assert_eq!(first(false, true), Effort::Once);
        assert_eq!([first(true, true), first(true, false), first(false, false)], [Effort::Least; 3]);
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
