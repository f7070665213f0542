//! When pages that were in use are tried anew, and how many of them at a time.
//!
//! Whether a page is still in use costs a touch to find out, if it is. So a few of an extent's are tried first, spread over all of them, and what became of these
//! says how many are tried next: who stays in use is asked for a few pages now and then, and memory that is used no more is found by a few pages of it.
//!
//! They are judged some time after they were tried, so that a page that was compressed and came back soon was in use.

use crate::pace::worth;

/// How soon pages are tried, in cold ages.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// How long they are left alone, at first and at most.
    pause: (u32, u32),
    /// After how long those are judged that were tried.
    judged: u32,
}

/// Of pages that were touched while they were set aside.
const TOUCHED: Tempo = Tempo { pause: (4, 8), judged: 2 };
/// Of pages that came back soon after they were compressed, which is dear: they have to stay away for as long as that is soon.
const RETURNED: Tempo = Tempo { pause: (16, 64), judged: crate::returns::SOON as u32 };

/// How pages are known to be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Used {
    /// They were touched while they were set aside.
    Touched,
    /// They came back soon after they were compressed.
    Returned,
}

impl Used {
    /// Both.
    pub const ALL: [Used; 2] = [Used::Touched, Used::Returned];

    /// How soon they are tried again.
    pub(crate) const fn tempo(self) -> Tempo {
        match self {
            Used::Touched => TOUCHED,
            Used::Returned => RETURNED,
        }
    }
}

/// At least so many are tried at a time, if there are so many: fewer are not worth the making of tables.
const FEW: u32 = 16;
const ALL: u32 = u32::MAX;
/// So many times as many are tried next where half of them stayed away.
const MORE: u32 = 4;

/// When and how many. All of it is zero before any page was in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recheck {
    /// When some were last tried, or the time began, ns.
    since: u64,
    /// In cold ages; 0 while no time is running.
    pause: u32,
    /// How many were tried last, or are next.
    tries: u32,
    /// Those that were tried last are not judged yet.
    open: bool,
    /// Who is tried next, another each time.
    turn: u32,
}

/// Which of them are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    step: usize,
    first: usize,
}

impl Sample {
    /// Whether the page in this place among those that were in use is tried.
    pub fn takes(&self, place: usize) -> bool {
        place % self.step == self.first
    }
}

impl Recheck {
    /// Pages were found in use at `now`. The time begins, if none is running.
    pub fn begin(&mut self, tempo: Tempo, now: u64) {
        if self.pause == 0 {
            (self.since, self.pause, self.tries, self.open) = (now, tempo.pause.0, FEW, false);
        }
    }

    /// All are tried at the next look after `now`.
    pub fn all_at(&mut self, tempo: Tempo, now: u64) {
        *self = Recheck {
            since: now,
            pause: self.pause.max(tempo.pause.0),
            tries: ALL,
            open: false,
            turn: self.turn,
        };
    }

    /// Whether some are to be tried, after a pause that is so many times as long, or judged.
    pub fn is_due(&self, tempo: Tempo, now: u64, cold_age: u64, stretch: u32) -> bool {
        let ages = match (self.open, self.tries) {
            (true, _) => tempo.judged,
            (false, ALL) => 0,
            (false, _) => self.pause.saturating_mul(stretch),
        };
        self.pause != 0 && now >= self.since.saturating_add(cold_age.saturating_mul(u64::from(ages)))
    }

    /// Which of the `used` pages that were in use are tried now that this [is due](Self::is_due), if any. Of those that were tried the last time, `tried`, `stayed` have
    /// stayed away.
    pub fn next(
        &mut self,
        tempo: Tempo,
        now: u64,
        tried: usize,
        stayed: usize,
        used: usize,
    ) -> Option<Sample> {
        if used == 0 {
            self.pause = 0;
            return None;
        }
        if core::mem::replace(&mut self.open, false) && tried != 0 {
            let (most, half, quarter) = (stayed * 10 >= tried * 9, stayed * 2 >= tried, stayed * 4 >= tried);
            if !half {
                self.pause = if quarter { self.pause } else { (self.pause * 2).min(tempo.pause.1) };
                self.tries = FEW;
                return None;
            }
            self.pause = tempo.pause.0;
            self.tries = if most { ALL } else { self.tries.saturating_mul(MORE) };
        }
        let step = (used / self.tries as usize).max(1);
        let sample = Sample { step, first: self.turn as usize % step };
        if self.tries == ALL {
            // What comes of all of them says no more than a few would of the others.
            self.tries = FEW;
        }
        (self.since, self.open, self.turn) = (now, true, self.turn.wrapping_add(1));
        Some(sample)
    }
}

/// One part in so many of what the program may wait is for trying pages that were in use: what was never looked at gains more.
const PART: u64 = 4;
/// The pause is so many times as long at most.
const LONGEST: u32 = 64;

/// How many times as long pages in use are left alone, where there are so many of them that trying them again would take more of the stall budget than a part of it.
#[derive(Clone, Debug)]
pub struct Stretch {
    times: u32,
    /// What trying has cost since then, ns.
    spent: u64,
    since: u64,
}

impl Stretch {
    /// Nothing was tried before `now`.
    pub const fn new(now: u64) -> Stretch {
        Stretch { times: 1, spent: 0, since: now }
    }

    /// So many of the pages that were tried were touched, each of which cost the program so much, ns.
    pub fn charge(&mut self, touched: u64, cost: u64) {
        self.spent = self.spent.saturating_add(touched.saturating_mul(cost));
    }

    /// By the time `now`. It is judged once in a cold age; `limit` is the share that the program may wait, in millionths.
    pub fn times(&mut self, now: u64, cold_age: u64, limit: u64) -> u32 {
        let passed = now.saturating_sub(self.since);
        if passed >= cold_age.max(1) {
            let most = worth(passed, limit) / PART;
            if self.spent > most {
                self.times = (self.times * 2).min(LONGEST);
            } else if self.spent < most / 4 {
                self.times = (self.times / 2).max(1);
            }
            (self.spent, self.since) = (0, now);
        }
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_too_many_pages_are_in_use_each_is_tried_more_rarely() {
        // Half a per cent of cold ages of ten seconds: a quarter of it is 12.5 ms.
        let (age, limit, touch) = (10_000_000_000, 5_000, 20_000);
        let mut stretch = Stretch::new(7);
        let mut now = 7;
        let mut go_on = |touched: u64, ages: u64| {
            (0..ages).for_each(|_| {
                stretch.charge(touched / 2, touch);
                assert_ne!(stretch.times(now + age / 2, age, limit), 0, "it is not judged before");
                stretch.charge(touched - touched / 2, touch);
                now += age;
                stretch.times(now, age, limit);
            });
            stretch.times(now, age, limit)
        };
        assert_eq!(go_on(600, 9), 1);
        assert_eq!(go_on(700, 3), 8);
        assert_eq!(go_on(400, 9), 8);
        assert_eq!(go_on(700, 9), 64);
        assert_eq!(go_on(100, 2), 16);
        assert_eq!(go_on(0, 9), 1);
    }

    #[test]
    fn a_stretched_pause_is_so_many_times_as_long_and_judging_is_not() {
        let (recheck, now) = begun();
        assert!(
            !recheck.is_due(TOUCHED, now + 4 * COLD, COLD, 2)
                && recheck.is_due(TOUCHED, now + 8 * COLD, COLD, 2)
        );
        let judged = Recheck { open: true, ..recheck };
        assert!(judged.is_due(TOUCHED, now + 2 * COLD, COLD, 64));
        let all = Recheck { tries: ALL, ..recheck };
        assert!(all.is_due(TOUCHED, now, COLD, 64));
    }

    const COLD: u64 = 1_000;

    /// The time until the next are tried, in cold ages, and how many are, of so many. Of those tried before, `stayed` per cent stayed away.
    fn next(recheck: &mut Recheck, now: &mut u64, stayed: usize, used: usize) -> (u64, usize) {
        next_at(TOUCHED, recheck, now, stayed, used)
    }

    fn next_at(
        tempo: Tempo,
        recheck: &mut Recheck,
        now: &mut u64,
        stayed: usize,
        used: usize,
    ) -> (u64, usize) {
        let began = *now;
        loop {
            while !recheck.is_due(tempo, *now, COLD, 1) {
                *now += COLD;
            }
            if let Some(sample) = recheck.next(tempo, *now, 100, stayed, used) {
                return ((*now - began) / COLD, (0..used).filter(|&place| sample.takes(place)).count());
            }
        }
    }

    fn begun() -> (Recheck, u64) {
        let mut recheck = Recheck::default();
        assert!(!recheck.is_due(TOUCHED, u64::MAX, COLD, 1));
        recheck.begin(TOUCHED, 7);
        // Others of the extent are found in use meanwhile.
        recheck.begin(TOUCHED, 7 + 3 * COLD);
        (recheck, 7)
    }

    #[test]
    fn what_stays_in_use_is_asked_for_a_few_pages_and_more_rarely() {
        let (mut recheck, mut now) = begun();
        let asked = [0; 4].map(|_| next(&mut recheck, &mut now, 10, 512));
        assert_eq!(asked, [4, 8, 8, 8].map(|ages| (ages, 16)));
    }

    #[test]
    fn of_what_is_used_no_more_all_is_tried_as_soon_as_a_few_have_stayed_away() {
        let (mut recheck, mut now) = begun();
        for _ in 0..9 {
            next(&mut recheck, &mut now, 0, 512);
        }
        assert_eq!(next(&mut recheck, &mut now, 95, 512), (2, 512));
        // Where many of these come back, a few of them are tried as at first.
        assert_eq!(next(&mut recheck, &mut now, 30, 288), (4, 16));
    }

    #[test]
    fn where_half_stays_away_more_are_tried_and_where_a_quarter_does_as_many() {
        let (mut recheck, mut now) = begun();
        next(&mut recheck, &mut now, 0, 512);
        assert_eq!([0; 3].map(|_| next(&mut recheck, &mut now, 60, 512)), [(2, 64), (2, 256), (2, 512)]);
        assert_eq!(next(&mut recheck, &mut now, 10, 512), (8, 16));
        recheck.pause = 4;
        assert_eq!([0; 3].map(|_| next(&mut recheck, &mut now, 30, 512)), [(4, 16); 3]);
    }

    #[test]
    fn what_came_back_soon_has_to_stay_away_for_longer() {
        let (mut recheck, mut now) = (Recheck::default(), 0);
        recheck.begin(RETURNED, now);
        let asked = [10, 10, 95, 10, 10].map(|stayed| next_at(RETURNED, &mut recheck, &mut now, stayed, 512));
        assert_eq!(asked, [(16, 16), (32, 16), (30, 512), (32, 16), (64, 16)]);
    }

    #[test]
    fn each_page_has_its_turn() {
        let (mut recheck, mut now) = begun();
        let mut seen = [false; 200];
        for _ in 0..12 {
            now += 8 * COLD;
            assert!(recheck.is_due(TOUCHED, now, COLD, 1));
            recheck.open = false;
            let sample = recheck.next(TOUCHED, now, 16, 0, 200).unwrap();
            (0..200).filter(|&place| sample.takes(place)).for_each(|place| seen[place] = true);
        }
        assert_eq!(seen, [true; 200]);
        // Of few all are.
        assert_eq!(next(&mut recheck, &mut now, 0, 31).1, 31);
    }

    #[test]
    fn all_are_tried_at_once_when_something_else_says_so() {
        let (mut recheck, mut now) = begun();
        for _ in 0..9 {
            next(&mut recheck, &mut now, 0, 512);
        }
        recheck.all_at(TOUCHED, now + 5);
        assert!(!recheck.is_due(TOUCHED, now + 4, COLD, 1) && recheck.is_due(TOUCHED, now + 5, COLD, 1));
        now += 5;
        assert_eq!(next(&mut recheck, &mut now, 0, 512), (0, 512));
        assert_eq!(next(&mut recheck, &mut now, 0, 512), (8, 16));
    }

    #[test]
    fn where_nothing_was_in_use_no_time_runs() {
        let (mut recheck, now) = begun();
        assert_eq!(recheck.next(TOUCHED, now + 4 * COLD, 0, 0, 0), None);
        assert!(!recheck.is_due(TOUCHED, u64::MAX, COLD, 1));
        recheck.begin(TOUCHED, now + 9 * COLD);
        let is_due = |now: u64| recheck.is_due(TOUCHED, now, COLD, 1);
        assert!(!is_due(now + 13 * COLD - 1) && is_due(now + 13 * COLD));
    }
}
