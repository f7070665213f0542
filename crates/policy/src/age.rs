//! The `age` policy: a page goes when nobody has touched it for the cold age.
//!
//! It decides by extent, in three states. A *fresh* extent is left alone for half the cold age. A *watched*
//! one has its writes tracked, which costs next to nothing; what was not written for half the cold age is
//! then set aside, which turns every touch, reads too, into a cheap second chance. What is still *probed*,
//! untouched, after the whole cold age has proved that it is cold, and is compressed.
//!
//! Pages that were touched while set aside are left alone, but for a few that are tried anew now and then and say whether the others are still in use
//! ([`crate::recheck`]). Pages that the kernel refuses to move (UFFDIO_MOVE says `EBUSY`: pinned for a device, or shared with a forked child and not written since) are
//! tried again when they were written, which makes them the program's own, and otherwise after such a time too.
//!
//! A program that has become calm is another matter: while it hardly runs, what it touched when it was busy is looked at again at once
//! ([`ExtentAge::calmed`]). Where that was too soon, calm must last for twice as long the next time.
//!
//! That is how it goes where touches are told by setting pages aside. Whoever else tells of them has another [`Timing`]: what is known to be
//! cold already need not prove it.

use crate::recheck::{Recheck, Sample, Used};
use crate::utilization::{Level, Utilization};

/// What to do with an extent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing yet.
    Wait,
    /// Begin to track its writes.
    Watch,
    /// Set aside what was not written since the last look, if the stall budget allows.
    Probe,
    /// Compress what is still set aside.
    Launder,
}

/// How the pages of an extent stand that are in view, were not written and were not touched while they were away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// A cold age is not over since they were first seen, or half of one since the last look.
    Young,
    /// They are cold as far as can be told, and the next step is due.
    Due,
    /// At the last looks nothing in the extent was cold, so the next one comes later.
    Seldom,
}

/// How long the steps take, by who tells of touches; in half cold ages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// For how long an extent is watched before what was not touched meanwhile is set aside.
    pub watched: u32,
    /// For how long it must then stay untouched before it is compressed; 0 where that it is cold is known by then.
    pub aside: u32,
    /// How many times as long the pause becomes at most between two looks at an extent in which nothing is cold.
    pub rarest: u32,
}

impl Timing {
    /// Of who sees writes only, and learns by setting pages aside which of the others are in use.
    pub const PROBE: Timing = Timing { watched: 1, aside: 2, rarest: BACKOFF_MOST };
    /// Of who sees writes only, and takes for cold what was not written for a whole cold age.
    pub const WRITES: Timing = Timing { watched: 2, aside: 0, rarest: BACKOFF_MOST / 2 };
    /// Of who is told for how long each page was not touched: to ask again costs next to nothing.
    pub const TOLD: Timing = Timing { watched: 1, aside: 0, rarest: 1 };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Unknown,
    Fresh,
    Watched,
    Probed,
}

/// Multiples of the cold age: how long pages that were refused are left alone, at first and at most.
const RETRY_FIRST: u32 = 4;
const RETRY_MOST: u32 = 256;
/// The most cold ages for which the program must be calm.
const CALM_MOST: u32 = 256;
/// Longest pause between two looks at an extent in which nothing is cold, in half cold ages.
const BACKOFF_MOST: u32 = 16;
/// How long an extent rests that was walked through, at first, in half cold ages. It doubles with each walk up to [`BACKOFF_MOST`].
const REST_FIRST: u32 = 1;
/// How long an extent is left alone that came back since the stall budget was used up, at first, in half cold ages. It doubles each time up to [`BACKOFF_MOST`].
const RETREAT_FIRST: u32 = 4;
/// Share of the pages set aside, in per cent, above which touching counts as churn, and below which as calm.
const CHURN: usize = 10;
const CALM: usize = 2;

/// What is known of one extent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtentAge {
    phase: Phase,
    /// When the phase began, or the last look was taken.
    since: u64,
    /// Pause until the next look, in half cold ages.
    backoff: u32,
    /// When pages that were touched while set aside, and that came back soon, are set aside again.
    rechecks: [Recheck; 2],
    /// How long refused pages are left alone, in cold ages; 0 before any was.
    refused: u32,
    /// When refused pages may be tried again; 0 where there are none.
    retry_at: u64,
    /// How long it rested after it was last walked through, in half cold ages.
    rest: u32,
    /// How long it was left alone after the stall budget was last used up by it, in half cold ages.
    retreat: u32,
    /// When it was last walked through.
    walked_at: u64,
    /// For how long pages of it had proved to be cold when they came back unasked, ns: it counts for the next probe.
    proved: u64,
    /// The last probe that was over left nearly all of it away.
    was_cold: bool,
    /// The next probe, or the one under way, is shorter because of that.
    lent: bool,
    /// The most that the program did when pages were last found in use; 0 before any were, and once it was calm since.
    busy: Level,
    /// For how many cold ages the program must be calm for that to count no more; 0 is one.
    calm: u32,
    /// It did, and whether that was too soon is not known yet.
    on_trial: bool,
}

impl ExtentAge {
    /// What to do at `now`, with this cold age in ns.
    pub fn due(&mut self, now: u64, cold_age: u64, timing: Timing) -> Step {
        let over = now.saturating_sub(self.since) >= self.pause(cold_age, timing);
        match self.phase {
            Phase::Unknown => {
                *self = ExtentAge { phase: Phase::Fresh, since: now, backoff: 1, ..ExtentAge::default() };
                Step::Wait
            }
            Phase::Fresh if over => Step::Watch,
            Phase::Watched if over => Step::Probe,
            Phase::Probed if over => Step::Launder,
            _ => Step::Wait,
        }
    }

    /// How long the phase lasts, ns.
    fn pause(&self, cold_age: u64, timing: Timing) -> u64 {
        match self.phase {
            Phase::Unknown => 0,
            Phase::Fresh => cold_age / 2,
            Phase::Watched => {
                let times = timing.watched.saturating_mul(self.backoff.min(timing.rarest));
                (cold_age / 2).saturating_mul(u64::from(times))
            }
            Phase::Probed => cold_age.saturating_mul(u64::from(timing.aside)) / 2,
        }
    }

    /// When [`ExtentAge::due`] will say something other than [`Step::Wait`] for the first time, with this cold age in ns.
    pub fn next(&self, cold_age: u64, timing: Timing) -> u64 {
        match self.phase {
            Phase::Unknown => 0,
            _ => self.since.saturating_add(self.pause(cold_age, timing)),
        }
    }

    /// Since when, in ns, nothing of it was seen to be touched: the last look that found anything to do, or `now` before the first one.
    pub fn since(&self, now: u64) -> u64 {
        match self.phase {
            Phase::Unknown => now,
            _ => self.since,
        }
    }

    /// How pages in view stand at `now`, with this cold age in ns. While others of the extent are probed, they have time.
    pub fn standing(&self, now: u64, cold_age: u64, timing: Timing) -> Standing {
        let age = now.saturating_sub(self.since);
        match self.phase {
            Phase::Fresh if age >= cold_age => Standing::Due,
            Phase::Watched if now >= self.next(cold_age, timing) => Standing::Due,
            Phase::Watched if age >= (cold_age / 2).saturating_mul(u64::from(timing.watched)) => {
                Standing::Seldom
            }
            _ => Standing::Young,
        }
    }

    /// Whether some pages that were in use are to be tried again, or those to be judged that were.
    pub fn recheck_due(&self, used: Used, now: u64, cold_age: u64, stretch: u32) -> bool {
        self.rechecks[used as usize].is_due(used.tempo(), now, cold_age, stretch)
    }

    /// Which of so many such `pages` are tried now that it is due. Of those that were tried the last time, `tried`, `stayed` have stayed away.
    pub fn recheck(
        &mut self,
        used: Used,
        now: u64,
        tried: usize,
        stayed: usize,
        pages: usize,
    ) -> Option<Sample> {
        self.rechecks[used as usize].next(used.tempo(), now, tried, stayed, pages)
    }

    fn begin_rechecks(&mut self, now: u64) {
        Used::ALL.iter().for_each(|&used| self.rechecks[used as usize].begin(used.tempo(), now));
    }

    /// Pages were found in use, or nothing was cold, while the program did so much.
    pub fn in_use(&mut self, level: Level) {
        self.busy = self.busy.max(level);
    }

    /// Whether the program has been calm for so long since pages were found in use that all of them may be tried anew, at the next look, which is near;
    /// true once each time. `came_back`: some of the extent's came back soon after they went.
    pub fn calmed(&mut self, now: u64, cold_age: u64, program: &Utilization, came_back: bool) -> bool {
        // What is being probed has its answer soon.
        if self.busy == 0 || self.is_probed() {
            return false;
        }
        if self.on_trial && came_back {
            self.calmed_too_soon();
        }
        let wanted = cold_age.saturating_mul(u64::from(self.calm.max(1)));
        if program.calm_since(self.busy, now) < wanted.max(1) {
            return false;
        }
        if core::mem::replace(&mut self.on_trial, true) {
            self.calm /= 2;
        }
        self.busy = 0;
        self.backoff = 1;
        Used::ALL.iter().for_each(|&used| self.rechecks[used as usize].all_at(used.tempo(), now));
        if self.retry_at != 0 {
            self.retry_at = now.max(1);
        }
        true
    }

    /// Pages that were tried because the program was calm were in use.
    fn calmed_too_soon(&mut self) {
        self.on_trial = false;
        self.calm = (self.calm.max(1) * 2).min(CALM_MOST);
    }

    /// The kernel refused to move pages at `now`, or has before. The time begins with the first of them, and doubles when
    /// it has to begin again.
    pub fn refused(&mut self, now: u64, cold_age: u64) {
        if self.retry_at == 0 {
            self.refused = (self.refused * 2).clamp(RETRY_FIRST, RETRY_MOST);
            self.retry_at = now.saturating_add(cold_age.saturating_mul(u64::from(self.refused))).max(1);
        }
    }

    /// Whether pages that were refused may be tried again although nobody has written them; true once each time.
    pub fn retry_due(&mut self, now: u64) -> bool {
        let due = self.retry_at != 0 && now >= self.retry_at;
        if due {
            self.retry_at = 0;
        }
        due
    }

    /// Tracking of writes began at `now`.
    pub fn watched(&mut self, now: u64) {
        self.phase = Phase::Watched;
        self.since = now;
    }

    /// A look at `now` found nothing to set aside. Where all that could go was touched in a probe that never ended, the time
    /// after which it is tried again begins here.
    pub fn nothing_cold(&mut self, now: u64) {
        self.watched(now);
        self.backoff = (self.backoff * 2).min(BACKOFF_MOST);
        self.begin_rechecks(now);
    }

    /// Pages were set aside at `now`.
    pub fn set_aside(&mut self, now: u64) {
        self.phase = Phase::Probed;
        self.since = now.saturating_sub(core::mem::take(&mut self.proved));
        self.backoff = 1;
    }

    /// The probe was interrupted at `now`: all of it came back, because other extents were walked through. A walk says nothing of what is in
    /// use, so the next probe comes after half a cold age and is shorter by what this one has proved, up to three quarters.
    pub fn recalled(&mut self, now: u64, cold_age: u64) {
        let proved = if self.is_probed() { now.saturating_sub(self.since) } else { 0 };
        self.watched(now);
        self.backoff = 1;
        self.proved = proved.min(cold_age / 4 * 3);
    }

    /// Whether pages of it that came back unasked had proved for so long that they are cold that nobody need be asked whether the program may wait for them
    /// in the next probe: few of them will be touched.
    pub fn has_proved(&self, cold_age: u64) -> bool {
        self.proved >= (cold_age / 2).max(1)
    }

    /// The probe ended at `now`: of `pages` set aside, `touched` came back.
    pub fn probed(&mut self, now: u64, pages: usize, touched: usize) {
        self.watched(now);
        let lent = core::mem::take(&mut self.lent);
        self.was_cold = touched * 100 <= pages * CHURN;
        if !self.was_cold {
            self.busy = 0;
            if self.on_trial {
                self.calmed_too_soon();
            }
        }
        self.begin_rechecks(now);
        if touched * 100 < pages * CALM {
            // What rests for longer each time it is walked through does so also where short probes end between two walks.
            if !lent {
                self.rest /= 2;
            }
            self.retreat /= 2;
        }
    }

    /// Whether pages of it were set aside, and it is not known yet which of them stay away.
    pub fn is_probed(&self) -> bool {
        self.phase == Phase::Probed
    }

    /// It was walked through, which says of none of its pages that it is in use. What comes within half a cold age is the same walk. If it had proved to be cold
    /// before, and this is the first walk since long, three quarters of the next probe are lent to it.
    pub fn walked(&mut self, now: u64, cold_age: u64) {
        if self.rest == 0 || now.saturating_sub(self.walked_at) >= cold_age / 2 {
            self.rest = (self.rest * 2).clamp(REST_FIRST, BACKOFF_MOST);
            self.lent = self.was_cold && self.rest == REST_FIRST;
            self.proved = if self.lent { cold_age / 4 * 3 } else { 0 };
        }
        self.walked_at = now;
        self.watched(now);
        self.backoff = self.rest;
    }

    /// Everything came back because the stall budget was used up: leave the extent alone, and for longer if that happens again.
    pub fn retreated(&mut self, now: u64) {
        self.retreat = (self.retreat * 2).clamp(RETREAT_FIRST, BACKOFF_MOST);
        self.watched(now);
        self.backoff = self.retreat;
    }

    /// The extent's memory was unmapped: what comes next is new.
    pub fn forget(&mut self) {
        *self = ExtentAge::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLD: u64 = 1_000;

    #[test]
    fn an_untouched_extent_is_compressed_after_a_whole_cold_age_aside() {
        let mut age = ExtentAge::default();
        assert_eq!(age.due(10, COLD, Timing::PROBE), Step::Wait);
        assert_eq!(age.due(10 + COLD / 2 - 1, COLD, Timing::PROBE), Step::Wait);
        assert_eq!(age.due(10 + COLD / 2, COLD, Timing::PROBE), Step::Watch);
        age.watched(510);
        assert_eq!(age.due(1_009, COLD, Timing::PROBE), Step::Wait);
        assert_eq!(age.due(1_010, COLD, Timing::PROBE), Step::Probe);
        age.set_aside(1_010);
        assert_eq!(age.due(2_009, COLD, Timing::PROBE), Step::Wait);
        assert_eq!(age.due(2_010, COLD, Timing::PROBE), Step::Launder);
    }

    #[test]
    fn what_is_known_to_be_cold_is_compressed_as_soon_as_it_is_aside() {
        let mut age = ExtentAge::default();
        age.due(0, COLD, Timing::WRITES);
        assert_eq!(age.due(COLD / 2, COLD, Timing::WRITES), Step::Watch);
        age.watched(COLD / 2);
        // A whole cold age without a write, and not half of one.
        assert_eq!(age.due(COLD * 3 / 2 - 1, COLD, Timing::WRITES), Step::Wait);
        assert_eq!(age.standing(COLD * 3 / 2 - 1, COLD, Timing::WRITES), Standing::Young);
        assert_eq!(age.due(COLD * 3 / 2, COLD, Timing::WRITES), Step::Probe);
        age.set_aside(COLD * 3 / 2);
        assert_eq!(age.due(COLD * 3 / 2, COLD, Timing::WRITES), Step::Launder);
        // Under the usual source the same extent has still to prove it.
        assert_eq!(age.due(COLD * 3 / 2, COLD, Timing::PROBE), Step::Wait);
        // Who is told asks again and again.
        let mut age = ExtentAge::default();
        age.due(0, COLD, Timing::TOLD);
        age.watched(0);
        for look in 1..9 {
            assert_eq!(age.next(COLD, Timing::TOLD), look * COLD / 2);
            assert_eq!(age.due(look * COLD / 2, COLD, Timing::TOLD), Step::Probe);
            age.nothing_cold(look * COLD / 2);
        }
    }

    #[test]
    fn a_cold_age_of_five_days_is_waited_for_to_the_last_moment() {
        const DAYS: u64 = 5 * 86_400_000_000_000;
        // The clock may stand anywhere when the extent is first seen.
        for start in [0, 3_155_760_000_000_000_000, u64::MAX / 2] {
            let mut age = ExtentAge::default();
            age.due(start, DAYS, Timing::PROBE);
            age.watched(start + DAYS / 2);
            assert_eq!(age.due(start + DAYS - 1, DAYS, Timing::PROBE), Step::Wait);
            assert_eq!(age.due(start + DAYS, DAYS, Timing::PROBE), Step::Probe);
            age.set_aside(start + DAYS);
            assert_eq!(age.due(start + 2 * DAYS - 1, DAYS, Timing::PROBE), Step::Wait);
            assert_eq!(age.due(start + 2 * DAYS, DAYS, Timing::PROBE), Step::Launder);
            age.probed(start + 2 * DAYS, 100, 100);
            assert!(!age.recheck_due(Used::Touched, start + 3 * DAYS, DAYS, 1));
        }
    }

    #[test]
    fn a_clock_that_jumps_brings_eviction_earlier_or_later_and_nothing_else() {
        let mut age = ExtentAge::default();
        age.due(5_000, COLD, Timing::PROBE);
        age.watched(5_500);
        // Back: it is as if no time had passed, until the clock is there again.
        assert_eq!(age.due(100, COLD, Timing::PROBE), Step::Wait);
        assert!(!age.recheck_due(Used::Touched, 100, COLD, 1));
        assert_eq!(age.due(6_000, COLD, Timing::PROBE), Step::Probe);
        age.set_aside(6_000);
        // Forth, to the end of time.
        assert_eq!(age.due(u64::MAX, COLD, Timing::PROBE), Step::Launder);
        age.probed(u64::MAX, 100, 100);
        assert!(age.recheck_due(Used::Touched, u64::MAX, COLD, 1));
        assert_eq!(age.due(u64::MAX, COLD, Timing::PROBE), Step::Wait);
    }

    #[test]
    fn what_is_walked_through_rests_for_longer_each_time_until_nobody_walks() {
        let mut age = ExtentAge::default();
        let mut now = 0;
        let mut rest = |age: &mut ExtentAge, walked: bool| {
            age.set_aside(now);
            age.probed(now, 512, if walked { 32 } else { 0 });
            if walked {
                age.walked(now, COLD);
                age.walked(now + COLD / 4, COLD);
                now += COLD / 4;
            }
            let next = age.next(COLD, Timing::PROBE) - now;
            now += next;
            next
        };
        let rests: std::vec::Vec<u64> = (0..6).map(|_| rest(&mut age, true)).collect();
        assert_eq!(rests, [COLD / 2, COLD, 2 * COLD, 4 * COLD, 8 * COLD, 8 * COLD]);
        for _ in 0..3 {
            assert_eq!(rest(&mut age, false), COLD / 2);
        }
        assert_eq!(rest(&mut age, true), 2 * COLD);
    }

    #[test]
    fn what_was_cold_and_is_walked_through_once_is_compressed_soon_and_not_each_time() {
        let mut age = ExtentAge::default();
        age.set_aside(0);
        age.probed(COLD, 512, 3);
        assert!(!age.has_proved(COLD));
        // From a walk until it is compressed again, where the next walk comes after twice as long.
        let mut now = 2 * COLD;
        let mut away = |age: &mut ExtentAge| {
            age.walked(now, COLD);
            let look = age.next(COLD, Timing::PROBE);
            let known = age.has_proved(COLD);
            age.set_aside(look);
            assert!(!age.has_proved(COLD));
            let end = age.next(COLD, Timing::PROBE);
            age.probed(end, 512, 3);
            let time = end - now;
            now = end + COLD / 2;
            (time, known)
        };
        let first = away(&mut age);
        assert_eq!(first, (COLD * 3 / 4, true));
        // It rests for twice as long, and has to prove it anew; after that it is as it was at first.
        assert_eq!(away(&mut age), (2 * COLD, false));
        assert_eq!([away(&mut age).1, away(&mut age).1], [false; 2]);
        // What was in use is lent nothing.
        age.probed(now, 512, 100);
        (age.rest, age.walked_at) = (0, 0);
        age.walked(now, COLD);
        assert!(!age.has_proved(COLD));
    }

    #[test]
    fn a_probe_that_was_interrupted_goes_on_with_what_it_has_proved() {
        let mut age = ExtentAge::default();
        let mut now = 0;
        let mut probes = 0;
        age.due(now, COLD, Timing::PROBE);
        age.set_aside(now);
        // A collector that walks every nine tenths of a cold age never lets a probe end at once.
        let end = loop {
            now += COLD * 9 / 10;
            probes += 1;
            if age.due(now, COLD, Timing::PROBE) == Step::Launder {
                break now;
            }
            age.recalled(now, COLD);
            assert_eq!(age.next(COLD, Timing::PROBE), now + COLD / 2);
            age.set_aside(now + COLD / 2);
        };
        assert_eq!((probes, end), (2, COLD * 18 / 10));
        // What was touched since, and walked through, has proved nothing.
        age.probed(now, 100, 50);
        age.set_aside(now);
        assert_eq!(age.next(COLD, Timing::PROBE), now + COLD);
    }

    #[test]
    fn the_time_of_the_next_step_is_foretold() {
        let mut age = ExtentAge::default();
        assert_eq!(age.next(COLD, Timing::PROBE), 0);
        let foretold = |age: &mut ExtentAge| {
            let next = age.next(COLD, Timing::PROBE);
            assert_eq!(age.due(next - 1, COLD, Timing::PROBE), Step::Wait);
            assert_ne!(age.due(next, COLD, Timing::PROBE), Step::Wait);
            next
        };
        age.due(5, COLD, Timing::PROBE);
        let now = foretold(&mut age);
        age.watched(now);
        let mut now = foretold(&mut age);
        for _ in 0..7 {
            age.nothing_cold(now);
            now = foretold(&mut age);
        }
        age.set_aside(now);
        foretold(&mut age);
    }

    #[test]
    fn pages_are_young_for_half_a_cold_age_after_each_look_and_due_when_the_next_one_is() {
        let mut age = ExtentAge::default();
        assert_eq!(age.standing(5, COLD, Timing::PROBE), Standing::Young);
        age.due(5, COLD, Timing::PROBE);
        assert_eq!(age.standing(5 + COLD - 1, COLD, Timing::PROBE), Standing::Young);
        assert_eq!(age.standing(5 + COLD, COLD, Timing::PROBE), Standing::Due, "nobody had time to look");
        age.watched(1_000);
        assert_eq!(age.standing(1_499, COLD, Timing::PROBE), Standing::Young);
        assert_eq!(age.standing(1_500, COLD, Timing::PROBE), Standing::Due);
        age.nothing_cold(1_500);
        assert_eq!(age.standing(1_999, COLD, Timing::PROBE), Standing::Young);
        assert_eq!(age.standing(2_000, COLD, Timing::PROBE), Standing::Seldom);
        assert_eq!(age.standing(2_500, COLD, Timing::PROBE), Standing::Due);
        age.set_aside(2_500);
        assert_eq!(age.standing(9_000, COLD, Timing::PROBE), Standing::Young);
    }

    #[test]
    fn looks_at_a_hot_extent_become_rare() {
        let mut age = ExtentAge::default();
        age.due(0, COLD, Timing::PROBE);
        age.watched(0);
        let mut now = 0;
        let mut looks = 0;
        while now < 100 * COLD {
            now += COLD / 2;
            if age.due(now, COLD, Timing::PROBE) == Step::Probe {
                looks += 1;
                age.nothing_cold(now);
            }
        }
        assert!(looks < 100 * 2 / 8, "{looks}");
    }

    /// The times from one try to the next of pages that the kernel always refuses.
    #[test]
    fn refused_pages_are_tried_again_and_ever_more_rarely() {
        let mut age = ExtentAge::default();
        let (mut now, mut gaps) = (5, [0; 6]);
        assert!(!age.retry_due(u64::MAX));
        for gap in &mut gaps {
            age.refused(now, COLD);
            let start = now;
            while !age.retry_due(now) {
                now += COLD;
                // Other pages of the extent are refused meanwhile.
                age.refused(now, COLD);
            }
            *gap = now - start;
        }
        assert_eq!(gaps.map(|gap| gap / COLD), [4, 8, 16, 32, 64, 128]);
        assert!(!age.retry_due(u64::MAX), "nothing is refused any more");
    }

    #[test]
    fn what_used_up_the_stall_budget_is_left_alone_for_longer_each_time_until_it_is_calm() {
        let mut age = ExtentAge::default();
        let pause = |age: &mut ExtentAge| {
            age.set_aside(0);
            age.retreated(0);
            age.next(COLD, Timing::PROBE)
        };
        assert_eq!([0; 4].map(|_| pause(&mut age)), [2 * COLD, 4 * COLD, 8 * COLD, 8 * COLD]);
        for _ in 0..2 {
            age.set_aside(0);
            age.probed(0, 100, 1);
        }
        assert_eq!(pause(&mut age), 4 * COLD);
        for _ in 0..4 {
            age.set_aside(0);
            age.probed(0, 100, 1);
        }
        assert_eq!(pause(&mut age), 2 * COLD);
    }

    /// The program after a minute of use at so many thousandths of a CPU, and so many cold ages of next to nothing.
    fn program(thousandths: u64, calm: u64) -> Utilization {
        let mut program = Utilization::default();
        let (mut now, mut ran) = (1, 0);
        for part in 0..(60 + calm) * 16 {
            program.note(now, ran, COLD);
            now += COLD / 16;
            ran += COLD / 16 * if part < 60 * 16 { thousandths } else { 1 } / 1000;
        }
        program.note(now, ran, COLD);
        program
    }

    #[test]
    fn what_was_in_use_is_tried_anew_when_the_program_has_become_calm() {
        let mut age = ExtentAge::default();
        let now = 60 * COLD + 1;
        age.due(1, COLD, Timing::PROBE);
        let busy = program(900, 0);
        for _ in 0..5 {
            age.probed(now, 100, 50);
            age.in_use(busy.level(now, COLD));
        }
        age.nothing_cold(now);
        assert!(!age.calmed(now, COLD, &busy, false));
        let later = now + COLD;
        let calm = program(900, 1);
        // Looks meanwhile find nothing, for what was in use is not tried.
        age.nothing_cold(later);
        age.in_use(calm.level(later, COLD));
        assert!(!age.recheck_due(Used::Touched, later, COLD, 1));
        assert!(age.calmed(later, COLD, &calm, false));
        assert!(
            age.next(COLD, Timing::PROBE) <= later + COLD / 2
                && age.recheck_due(Used::Touched, later + COLD / 2, COLD, 1)
        );
        assert!(!age.calmed(later + COLD, COLD, &calm, false), "once");
    }

    #[test]
    fn calm_that_was_no_good_sign_must_last_for_longer() {
        let mut age = ExtentAge::default();
        let now = 60 * COLD + 1;
        let level = program(900, 0).level(now, COLD);
        // For how long the program must be calm, in cold ages.
        let wanted = |age: &mut ExtentAge, came_back: bool| {
            age.in_use(level);
            (1..).find(|&ages| age.calmed(now + ages * COLD, COLD, &program(900, ages), came_back)).unwrap()
        };
        assert_eq!(wanted(&mut age, false), 1);
        // Touched in the probe; come back from the store; and then neither.
        age.probed(now, 100, 50);
        assert_eq!(wanted(&mut age, false), 2);
        assert_eq!(wanted(&mut age, true), 4);
        assert_eq!([0; 3].map(|_| wanted(&mut age, false)), [4, 2, 1]);
        // What is being probed has its answer soon.
        age.in_use(level);
        age.set_aside(now);
        assert!(!age.calmed(now + 9 * COLD, COLD, &program(900, 9), false));
    }

    #[test]
    fn pages_touched_in_a_probe_that_never_ended_are_tried_again() {
        let mut age = ExtentAge::default();
        age.due(0, COLD, Timing::PROBE);
        age.set_aside(0);
        age.retreated(10);
        age.nothing_cold(20);
        assert!(!age.recheck_due(Used::Touched, 20 + 3 * COLD, COLD, 1));
        assert!(age.recheck_due(Used::Touched, 20 + 4 * COLD, COLD, 1));
    }

    #[test]
    fn probes_of_others_do_not_put_off_the_time_when_touched_pages_are_tried() {
        let mut age = ExtentAge::default();
        age.probed(0, 100, 50);
        for look in 1..4 {
            age.probed(look * COLD, 100, 50);
            assert!(!age.recheck_due(Used::Touched, look * COLD, COLD, 1));
        }
        assert!(age.recheck_due(Used::Touched, 4 * COLD, COLD, 1));
        assert!(age.recheck(Used::Touched, 4 * COLD, 0, 0, 100).is_some());
        assert!(!age.recheck_due(Used::Touched, 5 * COLD, COLD, 1));
    }
}
