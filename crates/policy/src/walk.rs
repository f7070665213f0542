//! Telling a walk through memory from use.
//!
//! A collector that marks, a dump, a search: they touch every page of a heap once, and then none of them for as long as before.
//! Who walks waits for each page that is away, and all pages look as if they were in use. That it is a walk is seen from what
//! went before: pages that are in use come back at once when they are set aside; what lay still, and is then touched at many
//! places within a moment, is walked through. The rest of such an extent comes back unasked, and is not taken for used.
//!
//! Extents are judged one by one, and sooner where others are being walked through as well. Where several are, a collector is at
//! work, and will come to all the others: [`Walks::are_many`]. What merely lies whole comes back then wherever it is, and nothing is
//! set aside until [`is_over`].

/// Part of the cold age for which an extent lay still before a walk.
const STILL: u64 = 4;
/// Touches within a moment that come now and then, and do not count: a collector of young objects looks at old ones too.
const STRAY: u32 = 8;
/// How long a walk takes to touch so many pages of an extent, ns.
const MOMENT: u64 = 1_000_000_000;
/// Touches after which it is a walk, at first, and where [`OTHERS`] extents were walked through in the last moment.
const TOUCHES: (u32, u32) = (32, 8);
/// See [`TOUCHES`].
const OTHERS: u32 = 4;
/// Multiple of the touches from which on what is compressed comes back too: to read and compress it again costs more than to move it. Where a
/// collector is at work, and somebody has nothing else to do, it comes at once.
const COMPRESSED: (u32, u32) = (4, 1);
/// Extents that are remembered on the way through them.
const WAY: usize = 16;

/// Whether nobody walks any more at `now`; the last touch of a walk was at `last`.
pub fn is_over(now: u64, last: u64) -> bool {
    now.saturating_sub(last) > MOMENT
}

/// Touches of an extent within a moment, or of a walk. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Burst {
    /// When the first came, ns.
    pub began: u64,
    /// How many came.
    pub touches: u32,
    /// The extent had not lain still before: this tells what is in use.
    pub in_use: bool,
}

/// How much of an extent should come back with a page that was touched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Nothing more.
    Page,
    /// All that lies whole.
    Whole,
    /// All.
    Everything,
}

/// Walks through the memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walks {
    /// When the last extent was found to be walked through, ns, and how many were in that moment.
    at: u64,
    extents: u32,
}

impl Walks {
    /// None so far.
    pub const fn new() -> Walks {
        Walks { at: 0, extents: 0 }
    }

    /// Whether so many extents are being walked through at `now` that the others will be too.
    pub fn are_many(&self, now: u64) -> bool {
        now.saturating_sub(self.at) <= MOMENT && self.extents >= OTHERS
    }

    /// A page that was away is touched at `now`. The extent was touched before at `touched`, and pages of it were last set aside
    /// at `aside`. Others can be had to bring pages back if it is `helped`. Returns its touches, how much should come back, and whether a walk through it begins.
    pub fn touch(
        &mut self,
        burst: Burst,
        now: u64,
        touched: u64,
        aside: u64,
        cold_age: u64,
        helped: bool,
    ) -> (Burst, Reach, bool) {
        let compressed = if helped && self.are_many(now) { COMPRESSED.1 } else { COMPRESSED.0 };
        let enough = if self.are_many(now) { TOUCHES.1 } else { TOUCHES.0 };
        let still = cold_age / STILL;
        let goes_on = burst.touches > 0
            && aside <= burst.began
            && (!burst.in_use && burst.touches >= enough || now.saturating_sub(burst.began) <= MOMENT);
        let burst = if goes_on {
            Burst { touches: burst.touches.saturating_add(1), ..burst }
        } else {
            let rested = burst.touches < STRAY || now.saturating_sub(touched) >= still;
            Burst { began: now, touches: 1, in_use: !rested || now.saturating_sub(aside) < still }
        };
        let begins = !burst.in_use && burst.touches == enough;
        if begins {
            self.extents =
                if now.saturating_sub(self.at) <= MOMENT { self.extents.saturating_add(1) } else { 1 };
            self.at = now;
        }
        let reach = match burst.touches {
            _ if burst.in_use => Reach::Page,
            touches if touches >= compressed * enough => Reach::Everything,
            touches if touches >= enough => Reach::Whole,
            _ => Reach::Page,
        };
        (burst, reach, begins)
    }
}

/// The way that walks take from extent to extent, as far as it can be foreseen: where one is gone through after its neighbour, the next is the
/// one beyond it.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Numbers of extents, and when each was asked for, ns.
    asked: [(u64, u64); WAY],
    next: usize,
}

/// What to ask for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ahead {
    /// The extent at hand.
    pub this: bool,
    /// The number of the one after it, if that can be told.
    pub then: Option<u64>,
}

impl Way {
    /// Nothing was asked for.
    pub const fn new() -> Way {
        Way { asked: [(u64::MAX, 0); WAY], next: 0 }
    }

    /// Whether extent `number` was asked for within the last moment.
    pub fn was_asked(&self, number: u64, now: u64) -> bool {
        self.asked.iter().any(|&(asked, at)| asked == number && now.saturating_sub(at) <= MOMENT)
    }

    /// Extent `number` is walked through at `now`, and all of it should be there.
    pub fn go_through(&mut self, number: u64, now: u64) -> Ahead {
        let this = !self.was_asked(number, now);
        if this {
            self.note(number, now);
        }
        let below = number.checked_sub(1).filter(|&below| self.was_asked(below, now));
        let above = number.checked_add(1).filter(|&above| self.was_asked(above, now));
        let then = match (below, above) {
            (Some(_), None) => number.checked_add(1),
            (None, Some(_)) => number.checked_sub(1),
            _ => None,
        };
        if let Some(then) = then {
            self.note(then, now);
        }
        Ahead { this, then }
    }

    fn note(&mut self, number: u64, now: u64) {
        self.asked[self.next] = (number, now);
        self.next = (self.next + 1) % WAY;
    }
}

impl Default for Way {
    fn default() -> Way {
        Way::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const COLD: u64 = 10 * SECOND;
    const US: u64 = 1_000;

    /// What each of `touches` reached, one every `apart` ns from `start` on, of an extent set aside at 0, and the walks that began.
    fn reached(walks: &mut Walks, start: u64, apart: u64, touches: u64) -> (std::vec::Vec<Reach>, usize) {
        let (mut burst, mut last, mut began) = (Burst::default(), 0, 0);
        let reached = (0..touches)
            .map(|n| {
                let now = start + n * apart;
                let (next, reach, begins) = walks.touch(burst, now, last, 0, COLD, false);
                (burst, last) = (next, now);
                began += usize::from(begins);
                reach
            })
            .collect();
        (reached, began)
    }

    #[test]
    fn what_lay_still_and_is_touched_at_many_places_is_walked_through() {
        let (reached, began) = reached(&mut Walks::new(), 3 * SECOND, 100 * US, 130);
        assert!(reached[..31].iter().all(|&reach| reach == Reach::Page));
        assert!(reached[31..127].iter().all(|&reach| reach == Reach::Whole));
        assert!(reached[127..].iter().all(|&reach| reach == Reach::Everything));
        assert_eq!(began, 1);
    }

    #[test]
    fn what_is_touched_as_soon_as_it_is_set_aside_is_in_use() {
        let (reached, began) = reached(&mut Walks::new(), SECOND, 100 * US, 500);
        assert!(reached.iter().all(|&reach| reach == Reach::Page));
        assert_eq!(began, 0);
    }

    #[test]
    fn touches_now_and_then_do_not_hide_a_walk_and_much_use_before_it_does() {
        for (before, walked) in [(7, true), (8, false)] {
            let (mut walks, mut burst, mut last) = (Walks::new(), Burst::default(), 0);
            let mut touch = |now| {
                let (next, reach, _) = walks.touch(burst, now, last, 0, COLD, false);
                (burst, last) = (next, now);
                reach
            };
            assert!((0..before).all(|n| touch(3 * SECOND + n * US) == Reach::Page));
            let last = (0..40).map(|n| touch(4 * SECOND + 100_000 * US + n * US)).last();
            assert_eq!(last == Some(Reach::Whole), walked, "{before}");
        }
    }

    #[test]
    fn a_touch_now_and_then_is_no_walk() {
        let (reached, _) = reached(&mut Walks::new(), 3 * SECOND, 40_000 * US, 500);
        assert!(reached.iter().all(|&reach| reach == Reach::Page));
    }

    #[test]
    fn a_walk_that_was_seen_is_recognised_sooner_in_the_next_extents() {
        let mut walks = Walks::new();
        let first = |walks: &mut Walks, start| {
            let (reached, _) = reached(walks, start, 100 * US, 40);
            reached.iter().position(|&reach| reach == Reach::Whole)
        };
        for n in 0..4 {
            assert!(!walks.are_many(3 * SECOND));
            assert_eq!(first(&mut walks, 3 * SECOND + n * 5_000 * US), Some(31));
        }
        assert!(walks.are_many(3 * SECOND + 25_000 * US));
        assert_eq!(first(&mut walks, 3 * SECOND + 25_000 * US), Some(7));
        // It is over.
        assert!(!walks.are_many(6 * SECOND));
        assert_eq!(first(&mut walks, 6 * SECOND), Some(31));
    }

    #[test]
    fn where_others_help_and_a_collector_is_at_work_what_is_compressed_comes_at_once() {
        let many = Walks { at: 3 * SECOND, extents: OTHERS };
        let burst = Burst { began: 3 * SECOND, touches: TOUCHES.1 - 1, in_use: false };
        for (mut walks, helped, reach) in [
            (many, true, Reach::Everything),
            (many, false, Reach::Whole),
            (Walks { at: 0, extents: 0 }, true, Reach::Page),
        ] {
            assert_eq!(walks.touch(burst, 3 * SECOND + US, 3 * SECOND, 0, COLD, helped).1, reach);
        }
    }

    #[test]
    fn the_way_goes_on_in_the_direction_that_it_has_taken() {
        let now = SECOND;
        for (first, second, third, fourth) in [(10, 11, 12, 13), (10, 9, 8, 7)] {
            let mut way = Way::new();
            assert_eq!(way.go_through(first, now), Ahead { this: true, then: None });
            assert_eq!(way.go_through(first, now), Ahead::default());
            assert_eq!(way.go_through(second, now), Ahead { this: true, then: Some(third) });
            assert!(way.was_asked(third, now) && !way.was_asked(fourth, now));
            assert_eq!(way.go_through(third, now), Ahead { this: false, then: Some(fourth) });
            // What was asked for long ago may be away again.
            assert_eq!(way.go_through(third, now + 2 * MOMENT), Ahead { this: true, then: None });
        }
        assert_eq!(Way::new().go_through(0, now), Ahead { this: true, then: None });
    }

    #[test]
    fn a_walk_ends_when_pages_are_set_aside_again() {
        let mut walks = Walks::new();
        let burst = Burst { began: 3 * SECOND, touches: 60, in_use: false };
        let now = 3 * SECOND + 100 * US;
        assert_eq!(walks.touch(burst, now, now - US, 0, COLD, false).1, Reach::Whole);
        let in_use = Burst { began: now, touches: 1, in_use: true };
        assert_eq!(walks.touch(burst, now, now - US, now - US, COLD, false), (in_use, Reach::Page, false));
    }

    #[test]
    fn a_clock_that_jumps_back_changes_nothing_for_long() {
        let mut walks = Walks::new();
        let burst = Burst { began: 3 * SECOND, touches: 5, in_use: false };
        let (burst, reach, _) = walks.touch(burst, 1, 3 * SECOND, 0, COLD, false);
        assert_eq!((burst.touches, reach), (6, Reach::Page));
    }
}
