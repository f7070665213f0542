//! Foresight: what came back together once comes back together again.
//!
//! Touches of pages that are away come in bursts: a timer fires, a user types, a request of a rare kind comes in. The pages of a burst are
//! remembered as a group, in the order of their touches, across the whole memory. When a touch begins a burst as one began before, that was seen
//! twice with much the same pages, the rest of the group is asked for at once.
//!
//! Whether that was right is told by samples: of a group that is asked for, one page in [`SAMPLE`] is left out, each time others. A sample that
//! is touched counts as a hit, and one that is not as waste, for so many pages. What is wasted leaves the group; a group of which more than half
//! is wasted must prove itself anew.
//!
//! REAP (Ustiugov et al., ASPLOS 2021) and FaaSnap (Ao et al., EuroSys 2022) do so for snapshots of virtual machines that are started again.
//!
//! A group that recurs every second, every minute, is brought shortly before its time ([`crate::period`]). The samples tell of that too: the first
//! of them that is touched begins the burst. If none is, all of it was wasted.
//!
//! What it is not: prefetching of neighbours, which [`crate::walk`] and the windows of the fault thread do.
//!
//! Invariants: no memory but its own tables; a page takes four bytes; all-zero bytes know nothing.

use crate::period::Period;

/// Groups that are remembered.
pub const GROUPS: usize = 64;
/// Most pages of a group. Larger bursts are several groups, each of which is asked for when it is come to.
pub const PAGES: usize = 256;
/// Fewer touches are no burst.
const LEAST: usize = 8;
/// A touch of one of so many pages at the beginning of a group begins it.
const BEGINNINGS: usize = 8;
/// A burst is over when nothing was touched for so long, ns.
const PAUSE: u64 = 100_000_000;
/// Of so many pages one is left out.
pub const SAMPLE: usize = 8;
/// Most trust that a group can have.
const MOST_TRUST: u8 = 3;

/// Pages, in the order of their touches, each as its distance from the first.
#[derive(Clone, Copy, Debug)]
struct Pages {
    first: u64,
    distances: [i32; PAGES],
    len: u16,
}

impl Pages {
    const NONE: Pages = Pages { first: 0, distances: [0; PAGES], len: 0 };

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    fn at(&self, index: usize) -> u64 {
        self.first.wrapping_add_signed(i64::from(self.distances[index]))
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }

    fn position(&self, page: u64, among: usize) -> Option<usize> {
        (0..self.len().min(among)).find(|&index| self.at(index) == page)
    }

    fn push(&mut self, page: u64) {
        if self.len == 0 {
            self.first = page;
        }
        // What lies too far from the first is left to its own touch.
        let distance = i32::try_from(page.wrapping_sub(self.first) as i64);
        if let (Ok(distance), Some(place)) = (distance, self.distances.get_mut(usize::from(self.len))) {
            *place = distance;
            self.len += 1;
        }
    }
}

/// A group, with how far it can be trusted.
#[derive(Clone, Copy, Debug)]
struct Group {
    pages: Pages,
    /// When it last began, ns.
    began: u64,
    period: Period,
    awaited: Awaited,
    /// 0 where it was seen once only, or did not come as it was foreseen.
    trust: u8,
    /// Which pages are left out the next time.
    turn: u8,
}

/// Whether the time of a group has come, and it has not begun yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
enum Awaited {
    #[default]
    No = 0,
    /// Nothing might be asked for then.
    Unasked = 1,
    /// It was asked for.
    Asked = 2,
}

impl Group {
    const NONE: Group = Group {
        pages: Pages::NONE,
        began: 0,
        period: Period::begun(0),
        awaited: Awaited::No,
        trust: 0,
        turn: 0,
    };

    fn first(touched: Pages, began: u64) -> Group {
        Group { pages: touched, began, period: Period::begun(began), ..Group::NONE }
    }

    /// Has `ask` bring it, but for the samples and `but`; how many pages that is.
    fn ask(&self, but: Option<u64>, mut ask: impl FnMut(u64)) -> u64 {
        let wanted =
            (0..self.pages.len()).filter(|&index| !self.is_sample(index)).map(|index| self.pages.at(index));
        wanted.filter(|&page| but != Some(page)).map(&mut ask).count() as u64
    }

    /// When there is something to do for it by time.
    fn due(&self) -> Option<u64> {
        // Of fewer pages there may be no sample.
        let expected = self.period.expected().filter(|_| self.trust > 0 && self.pages.len() >= LEAST)?;
        Some(if self.awaited == Awaited::No { expected.from } else { expected.until })
    }

    fn is_sample(&self, index: usize) -> bool {
        index % SAMPLE == usize::from(self.turn) % SAMPLE
    }
}

/// A burst under way.
#[derive(Clone, Copy, Debug)]
struct Burst {
    touched: Pages,
    /// The number of the group that it seems to be, plus one; 0 for none.
    group: u8,
    /// It was asked for.
    asked: bool,
    /// And that before its first touch.
    by_time: bool,
    /// When it began, ns.
    began: u64,
}

impl Burst {
    const NONE: Burst = Burst { touched: Pages::NONE, group: 0, asked: false, by_time: false, began: 0 };

    fn group(&self) -> Option<usize> {
        usize::from(self.group).checked_sub(1)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Foresight {
    groups: [Group; GROUPS],
    /// A bit for each page that begins a group, and now and then for another: so most touches need not look at all groups.
    begins: [u64; GROUPS],
    burst: Burst,
    last: u64,
    /// When there is something to do by time, ns; 0 for never.
    due: u64,
}

/// What became of what was foreseen: at its first touch, and by time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // See there.
pub struct Outcome {
    pub bursts: Counts,
    pub periods: Counts,
}

/// Pages that were foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Asked for.
    pub predicted: u64,
    /// Touched, of what was asked for earlier, by the samples.
    pub hit: u64,
    /// Not touched.
    pub wasted: u64,
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.predicted += other.predicted;
        self.hit += other.hit;
        self.wasted += other.wasted;
    }
}

impl Foresight {
    /// Nothing is known.
    pub const fn new() -> Foresight {
        Foresight { groups: [Group::NONE; GROUPS], begins: [0; GROUPS], burst: Burst::NONE, last: 0, due: 0 }
    }

    /// When [`Foresight::look`] has something to do, if it has.
    pub fn due(&self) -> Option<u64> {
        (self.due != 0).then_some(self.due)
    }

    /// Has `ask` bring what is likely to be touched soon after `now`, page by page, if that `may` be asked for.
    pub fn look(&mut self, now: u64, may: bool, mut ask: impl FnMut(u64)) -> Outcome {
        let mut outcome = Outcome::default();
        if self.burst.touched.len() > 0 && now.saturating_sub(self.last) > PAUSE {
            outcome = self.end();
        }
        for group in &mut self.groups {
            let Some(expected) = group.due().and_then(|_| group.period.expected()) else {
                group.awaited = Awaited::No;
                continue;
            };
            if now >= expected.until {
                let asked = group.awaited == Awaited::Asked;
                if asked {
                    outcome.periods.wasted += group.pages.len() as u64;
                    group.turn = group.turn.wrapping_add(1);
                }
                group.awaited = Awaited::No;
                group.period.missed(asked);
            } else if now >= expected.from && group.awaited == Awaited::No {
                group.awaited = Awaited::Unasked;
                if may {
                    group.awaited = Awaited::Asked;
                    outcome.periods.predicted += group.ask(None, &mut ask);
                }
            }
        }
        self.note_due();
        outcome
    }

    fn note_due(&mut self) {
        self.due = self.groups.iter().filter_map(Group::due).min().unwrap_or(0);
    }

    /// A page that was away is touched at `now`. Has `ask` bring what is likely to be touched next, page by page, if that `may` be asked for.
    pub fn touch(&mut self, page: u64, now: u64, may: bool, mut ask: impl FnMut(u64)) -> Outcome {
        let mut outcome = Outcome::default();
        if now.saturating_sub(self.last) > PAUSE || self.burst.touched.len() == PAGES {
            outcome = self.end();
        }
        self.last = now;
        let known = self.burst.group().map(|group| &self.groups[group].pages);
        let expected = known.is_some_and(|pages| pages.position(page, PAGES).is_some());
        if !expected {
            if let Some(group) = self.beginning(page) {
                // It goes over into another one.
                if self.burst.group().is_some() {
                    outcome = self.end();
                }
                self.burst.group = group as u8 + 1;
                let group = &mut self.groups[group];
                group.began = now;
                group.period.came(now);
                if core::mem::take(&mut group.awaited) == Awaited::Asked {
                    (self.burst.asked, self.burst.by_time) = (true, true);
                } else if group.trust > 0 && may {
                    self.burst.asked = true;
                    outcome.bursts.predicted += group.ask(Some(page), &mut ask);
                }
                self.note_due();
            }
        }
        if self.burst.touched.len() == 0 {
            self.burst.began = now;
        }
        self.burst.touched.push(page);
        outcome
    }

    /// The group that a touch of this page begins.
    fn beginning(&self, page: u64) -> Option<usize> {
        if self.due != 0 {
            // Of what is there already no more than the samples are touched, of which any may be the first.
            let asked = |group: &Group| {
                group.awaited == Awaited::Asked && group.pages.position(page, PAGES).is_some()
            };
            if let Some(group) = self.groups.iter().position(asked) {
                return Some(group);
            }
        }
        let (word, bit) = bit_of(page);
        if self.begins[word] & bit == 0 {
            return None;
        }
        self.groups.iter().position(|group| group.pages.position(page, BEGINNINGS).is_some())
    }

    /// The burst is over: learns from it.
    fn end(&mut self) -> Outcome {
        let burst = core::mem::replace(&mut self.burst, Burst::NONE);
        let Burst { touched, asked, by_time, began, .. } = burst;
        let outcome = match burst.group() {
            Some(group) if asked => {
                let counts = self.judge(group, &touched, by_time);
                if by_time {
                    Outcome { periods: counts, ..Outcome::default() }
                } else {
                    Outcome { bursts: counts, ..Outcome::default() }
                }
            }
            Some(group) => {
                self.compare(group, &touched);
                Outcome::default()
            }
            None => {
                if touched.len() >= LEAST {
                    self.remember(touched, began);
                }
                Outcome::default()
            }
        };
        self.begins = [0; GROUPS];
        for page in self.groups.iter().flat_map(|group| group.pages.iter().take(BEGINNINGS)) {
            let (word, bit) = bit_of(page);
            self.begins[word] |= bit;
        }
        self.note_due();
        outcome
    }

    /// A group was asked for: what was touched of its samples tells of the rest.
    fn judge(&mut self, number: usize, touched: &Pages, by_time: bool) -> Counts {
        let group = &mut self.groups[number];
        let (mut kept, mut hit, mut wasted) = (Pages::NONE, 0, 0);
        for index in 0..group.pages.len() {
            let page = group.pages.at(index);
            // The page for which it was asked was touched in any case.
            if group.is_sample(index) && (by_time || page != touched.first) {
                if touched.position(page, PAGES).is_none() {
                    wasted += 1;
                    continue;
                }
                hit += 1;
            }
            kept.push(page);
        }
        touched.iter().for_each(|page| {
            if kept.position(page, PAGES).is_none() {
                kept.push(page);
            }
        });
        if hit >= wasted {
            group.trust = (group.trust + 1).min(MOST_TRUST);
        } else {
            group.trust = 0;
            kept = *touched;
        }
        group.pages = kept;
        group.turn = group.turn.wrapping_add(1);
        let samples = SAMPLE as u64;
        Counts { predicted: 0, hit: hit * samples, wasted: wasted * samples }
    }

    /// A group began, but was not asked for: whether it is what it was.
    fn compare(&mut self, number: usize, touched: &Pages) {
        let group = &mut self.groups[number];
        let same = touched.iter().filter(|&page| group.pages.position(page, PAGES).is_some()).count();
        let much = touched.len() >= LEAST && 2 * same >= group.pages.len().max(touched.len());
        group.trust = u8::from(much);
        if touched.len() >= LEAST {
            group.pages = *touched;
        }
    }

    /// Takes the place of a group that did not begin for longest, of those with the least trust.
    fn remember(&mut self, touched: Pages, began: u64) {
        let oldest = self.groups.iter_mut().min_by_key(|group| (group.trust > 0, group.began));
        if let Some(group) = oldest {
            *group = Group::first(touched, began);
        }
    }
}

/// The bit of a page in [`Foresight::begins`].
fn bit_of(page: u64) -> (usize, u64) {
    // Knuth, "The Art of Computer Programming", volume 3, 6.4: multiplicative hashing.
    let hash = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
    (hash as usize / 64 % GROUPS, 1 << (hash % 64))
}

impl Default for Foresight {
    fn default() -> Foresight {
        Foresight::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    /// A program whose pages are all away before each burst, and what is brought is there.
    struct World {
        foresight: Box<Foresight>,
        now: u64,
        sum: Counts,
        periods: Counts,
        here: Vec<u64>,
    }

    impl World {
        fn new() -> World {
            World {
                foresight: Box::new(Foresight::new()),
                now: SECOND,
                sum: Counts::default(),
                periods: Counts::default(),
                here: Vec::new(),
            }
        }

        /// Touches these pages, a second after what was last; how many it waited for.
        fn burst(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
            self.now += SECOND;
            self.touch(pages)
        }

        fn touch(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
            let (mut here, mut waits) = (core::mem::take(&mut self.here), 0);
            for page in pages {
                if !here.contains(&page) {
                    waits += 1;
                    self.now += 20_000;
                    let outcome = self.foresight.touch(page, self.now, true, |page| here.push(page));
                    self.note(outcome);
                }
            }
            waits
        }

        fn note(&mut self, outcome: Outcome) {
            self.sum += outcome.bursts;
            self.periods += outcome.periods;
        }

        /// Lets time go on, as the fault thread does, and then touches these pages.
        fn burst_at(&mut self, at: u64, pages: impl IntoIterator<Item = u64>) -> usize {
            self.wait_until(at);
            self.touch(pages)
        }

        fn wait_until(&mut self, at: u64) {
            let mut in_vain = 0;
            while let Some(due) = self.foresight.due().filter(|&due| due < at) {
                let mut here = core::mem::take(&mut self.here);
                let outcome = self.foresight.look(due + 1, true, |page| here.push(page));
                self.here = here;
                self.note(outcome);
                // Of a time that is long over, the next may be over too.
                let waits = self.foresight.due().is_none_or(|next| next > due);
                in_vain = if waits { 0 } else { in_vain + 1 };
                assert!(in_vain < 8, "it does not wait");
            }
            self.now = at;
        }
    }

    /// Pages all over the memory.
    fn scattered(seed: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |n| (1 << 34) + (seed * 1_000_003 + n * 7919) % 100_000)
    }

    #[test]
    fn what_came_together_twice_is_there_before_its_touch_the_third_time() {
        let mut world = World::new();
        let waits: Vec<usize> = (0..6).map(|_| world.burst(scattered(1, 200))).collect();
        assert_eq!(waits[..2], [200, 200]);
        assert!(waits[2..].iter().all(|&waits| waits <= 200 / 4), "{waits:?}");
        world.burst([1]);
        assert_eq!(world.sum.wasted, 0);
        assert!(world.sum.hit >= 4 * 180 && world.sum.predicted >= 4 * 170, "{:?}", world.sum);
    }

    #[test]
    fn several_groups_are_kept_apart_whatever_their_turn() {
        let mut world = World::new();
        let turns = [1, 2, 3, 2, 3, 1, 3, 1, 2];
        let waits: Vec<usize> = turns.iter().map(|&seed| world.burst(scattered(seed, 100))).collect();
        assert!(waits[..6].iter().all(|&waits| waits == 100), "{waits:?}");
        assert!(waits[6..].iter().all(|&waits| waits <= 25), "{waits:?}");
    }

    #[test]
    fn a_burst_larger_than_a_group_is_foreseen_group_by_group() {
        let mut world = World::new();
        let waits: Vec<usize> = (0..4).map(|_| world.burst(scattered(9, 1_000))).collect();
        assert_eq!(waits[..2], [1_000, 1_000]);
        assert!(waits[3] <= 300, "{waits:?}");
    }

    #[test]
    fn what_is_touched_at_random_is_never_foreseen() {
        let mut world = World::new();
        for seed in 0..200 {
            // The same page begins all of them.
            assert_eq!(world.burst([7].into_iter().chain(scattered(1000 + seed * 17, 60))), 61);
        }
        assert_eq!(world.sum.predicted, 0);
    }

    #[test]
    fn a_group_that_is_no_longer_what_it_was_is_asked_for_once_more_and_then_learnt_anew() {
        let mut world = World::new();
        for _ in 0..4 {
            world.burst(scattered(1, 100));
        }
        let changed = |seed| scattered(1, 4).chain(scattered(seed, 96));
        let before = world.sum;
        world.burst(changed(50));
        world.burst(changed(50));
        let predicted = world.sum.predicted - before.predicted;
        assert!(predicted <= 100, "{predicted} pages for a group that is gone");
        assert!(world.sum.wasted > 0);
        world.burst(changed(50));
        assert!(world.burst(changed(50)) <= 30, "the new one is known");
    }

    #[test]
    fn pages_that_are_no_longer_touched_leave_the_group() {
        let mut world = World::new();
        for _ in 0..3 {
            world.burst(scattered(1, 160));
        }
        for _ in 0..2 * SAMPLE {
            world.burst(scattered(1, 120));
        }
        let before = world.sum;
        world.burst(scattered(1, 120));
        assert!(world.sum.predicted - before.predicted <= 120, "{:?}", world.sum);
    }

    #[test]
    fn nothing_is_asked_for_while_it_may_not_be() {
        let mut foresight = Foresight::new();
        let mut now = SECOND;
        for _ in 0..4 {
            now += SECOND;
            for page in scattered(1, 50) {
                now += 1;
                assert_eq!(foresight.touch(page, now, false, |_| panic!("asked")).bursts.predicted, 0);
            }
        }
    }

    /// The waits of so many bursts of 160 pages, of which each begins so long after the one before.
    fn recurring(world: &mut World, seed: u64, lengths: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let mut at = world.now;
        let waits = lengths.into_iter().map(|length| {
            at += length;
            world.burst_at(at, scattered(seed, 160))
        });
        waits.collect()
    }

    #[test]
    fn what_recurs_is_there_before_its_first_touch() {
        for length in [SECOND, 60 * SECOND] {
            let mut world = World::new();
            let waits = recurring(&mut world, 1, [length; 10]);
            // What is left out of it tells that it was right.
            assert_eq!(waits[3..], [160 / SAMPLE; 7], "{waits:?}");
            world.burst([1]);
            assert_eq!(world.periods, Counts { predicted: 7 * 140, hit: 7 * 160, wasted: 0 });
        }
    }

    #[test]
    fn two_periods_at_once_are_both_known() {
        let mut world = World::new();
        let mut times: Vec<(u64, u64)> = (1..60).map(|n| (n * 2 * SECOND, 1)).collect();
        times.extend((1..40).map(|n| (n * 3 * SECOND + SECOND / 2, 2)));
        times.sort_unstable();
        let mut waits = 0;
        for (n, &(at, seed)) in times.iter().enumerate() {
            let waited = world.burst_at(10 * SECOND + at, scattered(seed, 160));
            waits += if n < 10 { 0 } else { waited };
        }
        assert!(waits <= (times.len() - 10) * 160 / 7, "{waits}");
        assert_eq!(world.periods.wasted, 0);
    }

    #[test]
    fn what_recurs_no_more_is_brought_twice_and_then_never() {
        let mut world = World::new();
        recurring(&mut world, 1, [SECOND; 10]);
        let before = world.periods.predicted;
        world.wait_until(world.now + 600 * SECOND);
        assert_eq!(world.periods.predicted - before, 2 * 140);
        assert_eq!(world.periods.wasted, 2 * 160);
        assert_eq!(world.foresight.due(), None);
    }

    #[test]
    fn what_disappoints_again_and_again_is_brought_less_and_less() {
        let mut world = World::new();
        for round in 0..20 {
            world.here.clear();
            recurring(&mut world, 1, [SECOND; 6]);
            world.wait_until(world.now + (20 + round) * SECOND);
        }
        assert!(world.periods.wasted <= 3 * 2 * 160, "{:?}", world.periods);
    }

    #[test]
    fn what_was_other_pages_this_time_is_wasted_and_not_expected_again() {
        let mut world = World::new();
        recurring(&mut world, 1, [SECOND; 6]);
        let before = world.periods;
        for seed in 50..60 {
            recurring(&mut world, seed, [SECOND]);
        }
        assert!(world.periods.predicted - before.predicted <= 2 * 140, "{:?}", world.periods);
        assert!(world.periods.wasted >= 160);
    }

    #[test]
    fn where_nothing_may_be_asked_for_nothing_is_and_nothing_is_wasted() {
        let mut world = World::new();
        recurring(&mut world, 1, [SECOND; 6]);
        let due = world.foresight.due().unwrap();
        let before = world.periods;
        let outcome = world.foresight.look(due, false, |_| panic!("asked"));
        world.note(outcome);
        assert!(world.foresight.due().unwrap() > due, "it waits for what may still come");
        world.wait_until(due + SECOND / 2);
        assert_eq!((world.periods.predicted, world.periods.wasted), (before.predicted, 0));
    }

    proptest::proptest! {
        #[test]
        fn whatever_time_does_no_more_is_wasted_than_was_brought(
            steps in proptest::collection::vec((0u64..5, 1u64..3_000, proptest::prelude::any::<bool>()), 1..200),
        ) {
            let mut world = World::new();
            for (seed, pause, waits) in steps {
                world.now += pause * 1_000_000;
                world.here.clear();
                if waits {
                    world.wait_until(world.now);
                }
                world.touch(scattered(seed, 40));
            }
            world.wait_until(world.now + 100 * SECOND);
            let Counts { predicted, hit, wasted } = world.periods;
            // One page in eight is left out, and stands for seven others.
            proptest::prop_assert!(7 * (hit + wasted) <= 8 * predicted + 7 * 2 * 64 , "{:?}", world.periods);
        }
    }

    #[test]
    fn a_page_takes_about_four_bytes() {
        assert!(size_of::<Foresight>() <= (GROUPS + 1) * (4 * PAGES + 80));
    }
}
