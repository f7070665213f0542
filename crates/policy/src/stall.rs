//! What the program may be made to wait: a share of any ten seconds, and a credit for looking at memory.
//!
//! Only a touch tells that a page is in use, so whoever sets aside what may be cold has the program wait for what is not. For a heap that
//! is looked at for the first time that comes to seconds of the share, however much of it is cold, and is over with once it is known. So such waits
//! may take a credit, as long as they are rewarded: a page stays away for each that is touched. It is what the share comes to in
//! [`CREDIT`], for each gibibyte that there is to look at, it comes back with what of the share is not used, and a part of it at a time may be spent: a larger heap
//! takes longer, and no more at a time.
//!
//! Invariants: looks are such that over any stretch of time what was waited for them is at most the share of it, the credit, the share of a window, and what was under way; and at
//! most [`HURRY`] times the share of it, the credit of one gibibyte, and the same two. What is waited for pages that come back from the store never counts as looking.

use crate::budget::{Budget, BROKEN, MOMENT, WINDOW};
use crate::pace::worth;

/// The credit is what the share comes to in this time, ns, for the first [`HEAP`] and for each further one.
pub const CREDIT: u64 = 100_000_000_000;
/// See there, bytes.
pub const HEAP: u64 = 1 << 30;
/// One part in so many of it pays for the first looks before it is seen how they are rewarded.
const ADVANCE: u64 = 2;
/// One part in so many of what is left may be spent by a pass, of the share and of the credit: the next one sees what it has cost.
const PARTS: u64 = 4;
const CREDIT_PARTS: u64 = 32;
/// What the first [`HEAP`] has of it may be spent without a pause, and beyond that the program waits for so many times the share.
pub const HURRY: u64 = 4;
const MILLION: u64 = 1_000_000;
/// Pages that must stay away, at least, for each one that is touched.
pub const REWARD: u64 = 1;
/// Looks of which it is seen how they are rewarded, before that counts.
const SEEN: u64 = 8;
/// Of looks that are not over, pages that are away for each that was touched so far, for it to count as a reward: what is in use comes back at once, and
/// little of the rest later.
const REWARD_SO_FAR: u64 = 3;
/// How many touches a look is expected to cost before any was, and how many it can cost: an extent has so many pages.
const TOUCHES_AT_FIRST: u64 = 64;
const MOST_TOUCHES: u64 = 512;

/// What used up the share: what comes back so that it is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Looks: what was set aside and has not yet proved to be cold.
    Looks,
    /// Pages that came back from the store used up the share by themselves.
    Returns,
}

/// What was waited, and what looks have cost.
#[derive(Clone, Debug)]
pub struct Stall {
    /// All waiting, and that of it which the credit has paid.
    waited: Budget,
    credited: Budget,
    /// That of it which was for pages that were looked at.
    looked_for: Budget,
    /// What the credit has paid since the start, ns.
    paid: u64,
    /// How much of the credit is used, ns. Beyond it is what is owed.
    used: u64,
    /// How much was waited lately beyond [`HURRY`] times the share, ns.
    hurried: u64,
    /// For so many millionths of a heap there is a credit, a whole one at least.
    heaps: u64,
    /// What the running total of waiting for pages that were looked at stood at, ns.
    looking: u64,
    /// What of the share has not been waited lately, ns: as much as the credit at the most.
    unspent: u64,
    /// Before that no look is taken because of it: what the last one costs is not all waited at once.
    alone_at: u64,
    /// When the credit was last filled.
    at: u64,
    /// Looks that are over.
    over: Looks,
    /// Looks as they were before they were over, since one was over that was not rewarded.
    begun: Looks,
    /// How many touches a look is expected to cost, in sixteenths.
    touches: u64,
}

impl Stall {
    /// Nothing waited yet, at `now`; running totals stand at `total` ns and, for pages that were looked at, `looking` ns. A forked
    /// child has no credit before it has earned it.
    pub const fn new(now: u64, total: u64, looking: u64, forked: bool) -> Stall {
        Stall {
            waited: Budget::new(total),
            credited: Budget::new(0),
            looked_for: Budget::new(looking),
            paid: 0,
            used: if forked { u64::MAX } else { 0 },
            hurried: 0,
            heaps: MILLION,
            looking,
            unspent: 0,
            alone_at: 0,
            at: now,
            over: Looks::NONE,
            begun: Looks::NONE,
            touches: 16 * TOUCHES_AT_FIRST,
        }
    }

    /// There are so many bytes to look at. What there once were counts: else memory that goes and comes back would have a new credit each time.
    pub fn have(&mut self, bytes: u64) {
        let heaps = u128::from(bytes) * u128::from(MILLION) / u128::from(HEAP);
        self.heaps = self.heaps.max(heaps as u64);
    }

    /// The whole of the credit, ns.
    fn credit(&self, limit: u64) -> u64 {
        (u128::from(worth(CREDIT, limit)) * u128::from(self.heaps) / u128::from(MILLION)) as u64
    }

    /// Charges what the running totals have grown to, as waited at `now`; `limit` is the share, in millionths. Totals that fell charge nothing.
    pub fn charge(&mut self, now: u64, total: u64, looking: u64, limit: u64) {
        let credit = self.credit(limit);
        let spent = total.saturating_sub(self.waited.total());
        let looked = looking.saturating_sub(self.looking).min(spent);
        self.looking = looking;
        let (first, window) = (worth(CREDIT, limit), worth(WINDOW, limit));
        self.used = self.used.min(credit + first);
        self.paid += looked.min(match self.are_rewarded() {
            Some(true) => credit.saturating_sub(self.used),
            Some(false) => 0,
            None => (credit / ADVANCE).saturating_sub(self.used),
        });
        let earned = worth(now.saturating_sub(self.at), limit);
        self.at = now.max(self.at);
        self.unspent = self.unspent.saturating_add(earned).saturating_sub(spent).min(credit);
        // What looks have cost is paid, however late it comes. The rest need not be: nobody had the choice.
        let others = (self.used + (spent - looked)).min((credit + window).max(self.used));
        self.used = (others + looked).saturating_sub(earned).min(credit + first);
        self.hurried = (self.hurried + spent).saturating_sub(earned.saturating_mul(HURRY)).min(first);
        self.waited.charge(now, total);
        self.credited.charge(now, self.paid);
        let looked_for = self.looked_for.total().saturating_add(looked);
        self.looked_for.charge(now, looked_for);
    }

    /// A look that set `pages` aside has had so many of them touched by now, in a good part of its time. It takes a whole cold age until a look is over: what
    /// was touched all over when a collector went through it would have all that is cold wait for that long.
    pub fn has_seen(&mut self, pages: u64, touched: u64) {
        self.begun.add(pages, touched);
        average(&mut self.touches, touched);
    }

    /// A look set `pages` aside, of which so many were touched. If those were too many, nothing counts that was seen of looks before they are over.
    pub fn looked(&mut self, pages: u64, touched: u64) {
        self.over.add(pages, touched);
        average(&mut self.touches, touched);
        if !is_rewarded(pages, touched, REWARD) {
            self.begun = Looks::NONE;
        }
    }

    /// Whether looks are rewarded, those that are over or those that have begun since; `None` before that is seen.
    fn are_rewarded(&self) -> Option<bool> {
        match (self.over.are_rewarded(REWARD), self.begun.are_rewarded(REWARD_SO_FAR)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (over, begun) => over.or(begun),
        }
    }

    /// How many looks may be taken in the pass at `now`, where a touch costs so much, ns.
    ///
    /// Looks that were expensive must not rule out all others for ever: once so much of the share was left over as pays for an extent that is touched
    /// all over, one is taken.
    pub fn looks(&mut self, now: u64, limit: u64, touch_cost: u64) -> u64 {
        let (credit, window) = (self.credit(limit), worth(WINDOW, limit));
        let share = window.saturating_sub(self.waited.used(now));
        // A share that pays for what the credit could not is not there a second time.
        let mut left = share.min((credit + window).saturating_sub(self.used)) / PARTS;
        if self.are_rewarded() == Some(true) {
            let at_once = worth(CREDIT, limit).saturating_sub(self.hurried);
            left += credit.saturating_sub(self.used).min(at_once) / CREDIT_PARTS;
        }
        let cost = ((self.touches / 16 + 1) * touch_cost).max(1);
        let looks = left / cost;
        let unspent = self.unspent.saturating_add(worth(now.saturating_sub(self.at), limit));
        let dearest = MOST_TOUCHES.saturating_mul(touch_cost).min(worth(CREDIT, limit));
        if looks != 0 || dearest == 0 || unspent < dearest || now < self.alone_at {
            return looks;
        }
        self.alone_at = now.saturating_add(cost.saturating_mul(MILLION) / limit);
        1
    }

    /// Whether so much was waited in the window that ends at `now` that it must not be repeated, and still is, and for what.
    pub fn broken(&mut self, now: u64, limit: u64) -> Option<Cause> {
        let bound = |time: u64| worth(time, limit.saturating_mul(BROKEN));
        let waited = self.waited.used(now);
        let counted = waited.saturating_sub(self.credited.used(now));
        let lately = self.waited.lately(now).saturating_sub(self.credited.lately(now));
        if counted < bound(WINDOW) || lately < bound(MOMENT) {
            return None;
        }
        let returns = waited.saturating_sub(self.looked_for.used(now));
        Some(if returns >= bound(WINDOW) { Cause::Returns } else { Cause::Looks })
    }

    /// Waited within the window that ends at `now`, ns.
    pub fn waited(&mut self, now: u64) -> u64 {
        self.waited.used(now)
    }

    /// What the running total stood at when it was last charged, ns.
    pub fn total(&self) -> u64 {
        self.waited.total()
    }
}

/// What looks set aside, and how much of it was touched.
#[derive(Clone, Copy, Debug)]
struct Looks {
    count: u64,
    /// Pages of a look, and how many of them are touched; moving averages, in sixteenths.
    pages: u64,
    touched: u64,
}

impl Looks {
    const NONE: Looks = Looks { count: 0, pages: 0, touched: 0 };

    fn add(&mut self, pages: u64, touched: u64) {
        if self.count == 0 {
            (self.pages, self.touched) = (16 * pages, 16 * touched);
        } else {
            average(&mut self.pages, pages);
            average(&mut self.touched, touched);
        }
        self.count += 1;
    }

    fn are_enough(&self) -> bool {
        self.count >= SEEN
    }

    /// Whether so many pages or more stay away for each that is touched; `None` before enough looks were taken to tell.
    fn are_rewarded(&self, reward: u64) -> Option<bool> {
        self.are_enough().then(|| is_rewarded(self.pages, self.touched, reward))
    }
}

/// Whether of so many pages as many stay away for each that is touched.
fn is_rewarded(pages: u64, touched: u64, reward: u64) -> bool {
    pages >= touched.saturating_mul(1 + reward)
}

/// Has a moving average, in sixteenths, follow another value.
fn average(average: &mut u64, value: u64) {
    *average = (*average * 7 + 16 * value) / 8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec;

    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    /// Half a per cent: 50 ms in a window, and 500 of credit.
    const LIMIT: u64 = 5_000;
    const TOUCH: u64 = 25_000;

    /// Looks that were rewarded as said.
    fn seen(pages: u64, touched: u64) -> Stall {
        let mut stall = Stall::new(0, 0, 0, false);
        (0..64).for_each(|_| stall.looked(pages, touched));
        stall
    }

    #[test]
    fn what_is_waited_counts_for_ten_seconds_and_holds_looks_back() {
        let mut stall = Stall::new(0, 0, 0, false);
        assert_ne!(stall.looks(0, LIMIT, TOUCH), 0);
        stall.charge(SECOND, 50 * MS, 0, LIMIT);
        assert_eq!(stall.looks(SECOND, LIMIT, TOUCH), 0);
        assert!(stall.broken(SECOND, LIMIT).is_none());
        stall.charge(SECOND, 100 * MS, 0, LIMIT);
        assert!(stall.broken(SECOND, LIMIT).is_some());
        assert_ne!(stall.looks(12 * SECOND, LIMIT, TOUCH), 0);
    }

    #[test]
    fn rewarded_looks_have_a_credit_and_others_do_not() {
        for (pages, touched, more) in [(500, 100, true), (500, 400, false), (500, 260, false)] {
            let mut stall = seen(pages, touched);
            // The share is used up, by looks.
            stall.charge(SECOND, 60 * MS, 60 * MS, LIMIT);
            assert_eq!(stall.looks(SECOND, LIMIT, TOUCH) != 0, more, "{touched} of {pages}");
        }
    }

    #[test]
    fn what_comes_back_from_the_store_is_never_paid_by_the_credit() {
        let mut stall = seen(500, 10);
        stall.charge(SECOND, 100 * MS, 0, LIMIT);
        assert!(stall.broken(SECOND, LIMIT).is_some());
    }

    #[test]
    fn what_used_up_the_share_is_told_apart() {
        // Rounds of a second, in ms: looks, returns.
        for (looks, returns, cause) in [
            (600, 0, Some(Cause::Looks)),
            (600, 99, Some(Cause::Looks)),
            (600, 100, Some(Cause::Returns)),
            (0, 100, Some(Cause::Returns)),
            (49, 50, None),
        ] {
            let mut stall = Stall::new(0, 7, 3, false);
            (0..64).for_each(|_| stall.looked(500, 400));
            stall.charge(SECOND, 7 + (looks + returns) * MS, 3 + looks * MS, LIMIT);
            assert_eq!(stall.broken(SECOND, LIMIT), cause, "{looks} {returns}");
            // It is over, and a little is no repetition.
            stall.charge(3 * SECOND, 7 + (looks + returns + 5) * MS, 3 + looks * MS, LIMIT);
            assert_eq!(stall.broken(3 * SECOND, LIMIT), None);
            stall.charge(3 * SECOND, 7 + (looks + returns + 10) * MS, 3 + looks * MS, LIMIT);
            let again = if returns + 10 >= 100 { Cause::Returns } else { Cause::Looks };
            assert_eq!(stall.broken(3 * SECOND, LIMIT), Some(again), "{looks} {returns}");
            assert_eq!(stall.broken(14 * SECOND, LIMIT), None);
        }
    }

    #[test]
    fn the_credit_is_used_once_and_comes_back_with_time() {
        let mut stall = seen(500, 100);
        let mut total = 0;
        for second in 1..=10 {
            total += 100 * MS;
            stall.charge(second * SECOND, total, total, LIMIT);
        }
        assert_eq!(stall.looks(10 * SECOND, LIMIT, TOUCH), 0, "all is used up");
        assert!(stall.broken(10 * SECOND, LIMIT).is_some(), "and the share by half of it");
        stall.charge(60 * SECOND, total, total, LIMIT);
        assert!(stall.paid > 450 * MS && stall.paid <= 550 * MS, "{}", stall.paid);
        let before = stall.used;
        // What was waited beyond it is paid first.
        stall.charge(110 * SECOND, total, total, LIMIT);
        assert!(before > 500 * MS && stall.used > 200 * MS);
        stall.charge(210 * SECOND, total, total, LIMIT);
        assert_eq!(stall.used, 0);
    }

    #[test]
    fn a_larger_heap_has_more_credit_and_no_more_at_a_time() {
        let (mut small, mut large) = (seen(500, 100), seen(500, 100));
        small.have(HEAP / 3);
        large.have(4 * HEAP);
        assert_eq!(large.looks(0, LIMIT, TOUCH), small.looks(0, LIMIT, TOUCH));
        let mut total = 0;
        let go_on = |stall: &mut Stall, total: u64, second: u64| {
            stall.charge(second * SECOND, total, total, LIMIT);
            stall.looks(second * SECOND, LIMIT, TOUCH)
        };
        for second in 1..=10 {
            total += 60 * MS;
            go_on(&mut small, total, second);
            go_on(&mut large, total, second);
        }
        assert_eq!(small.looks(10 * SECOND, LIMIT, TOUCH), 0);
        assert_ne!(large.looks(10 * SECOND, LIMIT, TOUCH), 0);
        for second in 11..=20 {
            total += 60 * MS;
            go_on(&mut large, total, second);
        }
        assert_eq!(large.looks(20 * SECOND, LIMIT, TOUCH), 0, "what may be used without a pause");
        assert_ne!(go_on(&mut large, total, 25), 0, "there is more");
        for second in 26..=45 {
            total += 60 * MS;
            go_on(&mut large, total, second);
        }
        assert_eq!(go_on(&mut large, total, 47), 0, "all is used up");
        assert!(large.paid > 1_900 * MS && large.paid <= 2_250 * MS, "{}", large.paid);
    }

    #[test]
    fn a_forked_child_earns_its_credit() {
        let mut child = Stall::new(0, 0, 0, true);
        (0..64).for_each(|_| child.looked(500, 100));
        child.charge(SECOND, 60 * MS, 60 * MS, LIMIT);
        assert_eq!(child.looks(SECOND, LIMIT, TOUCH), 0);
        child.charge(101 * SECOND, 60 * MS, 60 * MS, LIMIT);
        child.charge(101 * SECOND, 120 * MS, 120 * MS, LIMIT);
        assert_ne!(child.looks(101 * SECOND, LIMIT, TOUCH), 0);
    }

    #[test]
    fn what_looks_have_cost_so_far_counts_as_long_as_those_that_are_over_do_not_belie_it() {
        let mut stall = Stall::new(0, 0, 0, false);
        let first = stall.looks(0, LIMIT, TOUCH);
        (0..32).for_each(|_| stall.has_seen(500, 4));
        assert!(stall.looks(0, LIMIT, TOUCH) > 4 * first);
        // In the end all was touched, each time.
        (0..32).for_each(|_| {
            stall.has_seen(500, 4);
            stall.looked(500, 500);
        });
        assert!(stall.looks(12 * SECOND, LIMIT, TOUCH) < first);
        stall.charge(13 * SECOND, 60 * MS, 60 * MS, LIMIT);
        assert_eq!(stall.looks(13 * SECOND, LIMIT, TOUCH), 0);
    }

    #[test]
    fn looks_that_a_collector_walked_into_count_until_it_is_seen_that_the_next_are_rewarded() {
        let mut stall = Stall::new(0, 0, 0, false);
        stall.charge(SECOND, 280 * MS, 280 * MS, LIMIT);
        (0..20).for_each(|_| stall.looked(500, 500));
        assert_eq!(stall.looks(2 * SECOND, LIMIT, TOUCH), 0);
        (0..7).for_each(|_| stall.has_seen(500, 30));
        assert_eq!(stall.looks(2 * SECOND, LIMIT, TOUCH), 0);
        stall.has_seen(500, 30);
        assert_ne!(stall.looks(2 * SECOND, LIMIT, TOUCH), 0);
        // One that is over says otherwise.
        stall.looked(500, 500);
        assert_eq!(stall.looks(2 * SECOND, LIMIT, TOUCH), 0);
    }

    #[test]
    fn first_looks_that_are_rewarded_so_far_have_the_credit() {
        for (begun, touched, more) in [(8, 50, true), (7, 50, false), (64, 200, false)] {
            let mut stall = Stall::new(0, 0, 0, false);
            (0..begun).for_each(|_| stall.has_seen(500, touched));
            stall.charge(SECOND, 60 * MS, 60 * MS, LIMIT);
            assert_eq!(stall.looks(SECOND, LIMIT, TOUCH) != 0, more, "{begun}, {touched} touched");
            assert!(!more || stall.broken(SECOND, LIMIT).is_none());
        }
    }

    #[test]
    fn before_the_first_looks_are_judged_half_of_the_credit_pays_for_them_and_grants_no_more() {
        for (touched, broken) in [(50, false), (400, true)] {
            let mut stall = Stall::new(0, 0, 0, false);
            stall.charge(SECOND, 150 * MS, 150 * MS, LIMIT);
            assert!(stall.broken(SECOND, LIMIT).is_none());
            stall.charge(SECOND, 210 * MS, 210 * MS, LIMIT);
            assert_eq!(stall.looks(SECOND, LIMIT, TOUCH), 0, "the share is used up");
            (0..8).for_each(|_| stall.has_seen(500, touched));
            stall.charge(2 * SECOND, 330 * MS, 330 * MS, LIMIT);
            assert_eq!(stall.broken(2 * SECOND, LIMIT).is_some(), broken, "{touched} touched");
            assert_eq!(stall.looks(2 * SECOND, LIMIT, TOUCH) != 0, !broken);
        }
        // What comes back from the store is no look.
        let mut stall = Stall::new(0, 0, 0, false);
        stall.charge(SECOND, 100 * MS, 0, LIMIT);
        assert!(stall.broken(SECOND, LIMIT).is_some());
    }

    #[test]
    fn looks_that_were_touched_all_over_do_not_rule_out_others_for_ever() {
        let (mut stall, cost) = (seen(500, 500), 75_000);
        stall.charge(SECOND, 900 * MS, 0, LIMIT);
        assert_eq!(stall.looks(SECOND, LIMIT, cost), 0);
        stall.charge(8 * SECOND, 900 * MS, 0, LIMIT);
        assert_eq!(stall.looks(8 * SECOND, LIMIT, cost), 0);
        stall.charge(9 * SECOND, 900 * MS, 0, LIMIT);
        assert_eq!(stall.looks(9 * SECOND, LIMIT, cost), 1);
        // It was touched all over, again.
        stall.charge(9 * SECOND + 1, 940 * MS, 40 * MS, LIMIT);
        assert_eq!(stall.looks(10 * SECOND, LIMIT, cost), 0);
        // No share pays for nothing.
        assert_eq!(stall.looks(900 * SECOND, 0, cost), 0);
    }

    #[test]
    fn a_touch_now_and_then_rules_no_look_out() {
        let mut stall = seen(500, 500);
        let mut total = 60 * MS;
        for second in 1..=30 {
            stall.charge(second * SECOND, total, 0, LIMIT);
            total += TOUCH;
        }
        assert_eq!(stall.looks(30 * SECOND, LIMIT, TOUCH), 1);
        // Where the share is used up it does.
        for second in 31..=60 {
            total += 5 * MS;
            stall.charge(second * SECOND, total, 0, LIMIT);
        }
        total += 30 * 5 * MS;
        stall.charge(60 * SECOND, total, 0, LIMIT);
        assert_eq!(stall.looks(60 * SECOND, LIMIT, TOUCH), 0);
        // However dear a touch was, once the whole credit was left over.
        stall.charge(160 * SECOND, total, 0, LIMIT);
        assert_eq!(stall.looks(161 * SECOND, LIMIT, 50 * MS), 1);
    }

    #[test]
    fn no_share_is_no_credit() {
        let mut stall = seen(500, 100);
        stall.charge(SECOND, 0, 0, 0);
        assert_eq!(stall.looks(SECOND, 0, TOUCH), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// A pager that takes all looks that it may for an hour keeps to what is promised, whatever heap it finds and however late that is touched.
        #[test]
        fn waiting_stays_below_the_share_and_the_credit(
            of_100 in 0u64..100,
            heaps in 1u64..64,
            late in 0usize..8,
            limit in 1_000u64..50_000,
        ) {
            const PASSES: u64 = 4 * 3600;
            let mut stall = Stall::new(0, 0, 0, false);
            let mut under_way = VecDeque::from(vec![0; late]);
            let mut totals = VecDeque::new();
            let (mut total, mut most_under_way) = (0, 0);
            for pass in 1..=PASSES {
                let now = pass * 250 * MS;
                // Part of the memory is there for half of the time.
                stall.have(if pass % 512 < 256 { heaps * HEAP } else { HEAP });
                stall.charge(now, total, total, limit);
                let looks = stall.looks(now, limit, TOUCH);
                // More or less of each look is touched.
                let touched = |look: u64| 512 * of_100 / 100 * ((pass + look) % 3) / 2;
                for look in 0..looks.min(64) {
                    stall.has_seen(512, touched(look) / 2);
                    stall.looked(512, touched(look).min(512));
                }
                under_way.push_back((0..looks).map(|look| touched(look).min(512) * TOUCH).sum::<u64>());
                most_under_way = most_under_way.max(under_way.iter().sum());
                total += under_way.pop_front().unwrap_or(0);
                totals.push_back(total);
                let beyond = worth(WINDOW, limit) + most_under_way;
                let most = worth(now, limit) + worth(CREDIT, limit) * heaps + beyond;
                prop_assert!(total <= most, "{total} in {now} at {limit}");
                if totals.len() > 240 {
                    let minute = total - totals.pop_front().unwrap();
                    let most = HURRY * worth(60 * SECOND, limit) + worth(CREDIT, limit) + beyond;
                    prop_assert!(minute <= most, "{minute} in the minute before {now} at {limit}");
                }
            }
        }
    }
}
