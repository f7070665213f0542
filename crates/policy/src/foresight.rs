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
//! What it is not: prefetching of neighbours, which [`crate::walk`] and the windows of the fault thread do. It knows no periods.
//!
//! Invariants: no memory but its own tables; a page takes four bytes; all-zero bytes know nothing.

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
    /// 0 where it was seen once only, or did not come as it was foreseen.
    trust: u8,
    /// Which pages are left out the next time.
    turn: u8,
}

impl Group {
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
}

impl Burst {
    const NONE: Burst = Burst { touched: Pages::NONE, group: 0, asked: false };

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
}

/// What became of what was foreseen, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Asked for.
    pub predicted: u64,
    /// Touched, of what was asked for earlier, by the samples.
    pub hit: u64,
    /// Not touched.
    pub wasted: u64,
}

impl Foresight {
    /// Nothing is known.
    pub const fn new() -> Foresight {
        let group = Group { pages: Pages::NONE, began: 0, trust: 0, turn: 0 };
        Foresight { groups: [group; GROUPS], begins: [0; GROUPS], burst: Burst::NONE, last: 0 }
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
                if group.trust > 0 && may {
                    self.burst.asked = true;
                    for index in (0..group.pages.len()).filter(|&index| !group.is_sample(index)) {
                        let next = group.pages.at(index);
                        if next != page {
                            ask(next);
                            outcome.predicted += 1;
                        }
                    }
                }
            }
        }
        self.burst.touched.push(page);
        outcome
    }

    /// The group that a touch of this page begins.
    fn beginning(&self, page: u64) -> Option<usize> {
        let (word, bit) = bit_of(page);
        if self.begins[word] & bit == 0 {
            return None;
        }
        self.groups.iter().position(|group| group.pages.position(page, BEGINNINGS).is_some())
    }

    /// The burst is over: learns from it.
    fn end(&mut self) -> Outcome {
        let burst = core::mem::replace(&mut self.burst, Burst::NONE);
        let Burst { touched, asked, .. } = burst;
        let outcome = match burst.group() {
            Some(group) if asked => self.judge(group, &touched),
            Some(group) => {
                self.compare(group, &touched);
                Outcome::default()
            }
            None => {
                if touched.len() >= LEAST {
                    self.remember(touched);
                }
                Outcome::default()
            }
        };
        self.begins = [0; GROUPS];
        for page in self.groups.iter().flat_map(|group| group.pages.iter().take(BEGINNINGS)) {
            let (word, bit) = bit_of(page);
            self.begins[word] |= bit;
        }
        outcome
    }

    /// A group was asked for: what was touched of its samples tells of the rest.
    fn judge(&mut self, number: usize, touched: &Pages) -> Outcome {
        let group = &mut self.groups[number];
        let (mut kept, mut hit, mut wasted) = (Pages::NONE, 0, 0);
        for index in 0..group.pages.len() {
            let page = group.pages.at(index);
            // The page that began it was touched in any case.
            if group.is_sample(index) && page != touched.first {
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
        Outcome { predicted: 0, hit: hit * samples, wasted: wasted * samples }
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
    fn remember(&mut self, touched: Pages) {
        let oldest = self.groups.iter_mut().min_by_key(|group| (group.trust > 0, group.began));
        if let Some(group) = oldest {
            *group = Group { pages: touched, began: self.last, trust: 0, turn: 0 };
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
        sum: Outcome,
    }

    impl World {
        fn new() -> World {
            World { foresight: Box::new(Foresight::new()), now: SECOND, sum: Outcome::default() }
        }

        /// Touches these pages, a second after what was last; how many it waited for.
        fn burst(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
            let (mut here, mut waits) = (Vec::new(), 0);
            self.now += SECOND;
            for page in pages {
                if !here.contains(&page) {
                    waits += 1;
                    self.now += 20_000;
                    let outcome = self.foresight.touch(page, self.now, true, |page| here.push(page));
                    self.sum.predicted += outcome.predicted;
                    self.sum.hit += outcome.hit;
                    self.sum.wasted += outcome.wasted;
                }
            }
            waits
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
                assert_eq!(foresight.touch(page, now, false, |_| panic!("asked")).predicted, 0);
            }
        }
    }

    #[test]
    fn a_page_takes_about_four_bytes() {
        assert!(size_of::<Foresight>() <= (GROUPS + 1) * (4 * PAGES + 48));
    }
}
