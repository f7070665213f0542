//! A share of time that is spent evenly: a bucket that fills at the rate of the share, and out of which work is paid.
//!
//! How large the share is, [`share`] says: what nobody else has a use for may be had up to a limit, and little of what others wait for.
//!
//! What it is not: a record of what was spent in a window, which is [`crate::budget`]. A window may be spent at its
//! beginning, all of it, and then nothing for as long as it lasts: what lives for four seconds would never notice the limit.
//!
//! Invariants: over any stretch of time, what was spent is at most the share of it, and [`BURST`] worth of the share ([`SAVINGS`] where a CPU has
//! time to spare), and what the last piece of work was over. Debts are kept, up to [`DEBT`] worth of the share, and paid before more is spent; what a single piece is over beyond
//! that is forgiven.

/// So much worth of the share can be saved up, ns.
pub const BURST: u64 = 500_000_000;

/// The same where CPUs have time to spare: memory goes cold all at once, when a program comes to rest or a collector has walked through it, and what was
/// saved up until then has it folded in a moment, by a CPU that nobody wants. With twice as much, a program that goes round in its memory waits half as long again
/// for what it wants back, before it is seen that it does.
pub const SAVINGS: u64 = 5_000_000_000;

/// So much worth of the share can be owed, ns: for work that had to be done whatever it cost.
pub const DEBT: u64 = 10_000_000_000;

/// The highest share where CPUs have nothing to spare, millionths.
pub const CONTENDED: u64 = 30_000;

/// So much may be spent at twice that share first, ns: a program that has just come to be has everything to gain.
pub const CREDIT: u64 = 2_000_000_000;

/// Looks at what there is to do, when nothing may be done, take one part in so many of the share.
const LOOKS: u64 = 4;

/// The longest pause between two such looks, ns.
const LONGEST_PAUSE: u64 = 10_000_000_000;

/// A share of 1, in millionths.
const WHOLE: u64 = 1_000_000;

/// The bucket. It is charged by what a running total has grown.
#[derive(Clone, Debug)]
pub struct Pace {
    /// What may be spent now, ns; below zero what is owed.
    left: i64,
    /// What may be saved up at most, ns.
    most: i64,
    /// What is left over of a millionth of a nanosecond.
    rest: u64,
    /// When it was last filled.
    at: u64,
    /// What the running total stood at when it was last charged.
    total: u64,
}

impl Pace {
    /// An empty bucket at `now`, of a running total that stands at `total` ns.
    pub const fn new(now: u64, total: u64) -> Pace {
        Pace { left: 0, most: 0, rest: 0, at: now, total }
    }

    /// Fills it for the time until `now` at a rate of `share` millionths, and charges what the running total has grown to
    /// `total` ns by. One that fell charges nothing. More can be saved up where there is a whole CPU to `spare`.
    pub fn charge(&mut self, now: u64, total: u64, share: u64, spare: bool) {
        let parts = u128::from(now.saturating_sub(self.at)) * u128::from(share) + u128::from(self.rest);
        self.at = now.max(self.at);
        self.rest = (parts % u128::from(WHOLE)) as u64;
        let earned = i64::try_from(parts / u128::from(WHOLE)).unwrap_or(i64::MAX);
        let spent = i64::try_from(total.saturating_sub(self.total)).unwrap_or(i64::MAX);
        self.total = total;
        self.most = worth(if spare { SAVINGS } else { BURST }, share) as i64;
        let least = -(worth(DEBT, share) as i64);
        // What was earned before the work was begun may be spent on it, beyond what can be saved.
        self.left = self.left.saturating_add(earned).saturating_sub(spent).clamp(least, self.most);
    }

    /// What may be spent now, ns; 0 while anything is owed.
    pub fn left(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }

    /// Whether work that can wait may go on, once so much was `spent` since the last charge, ns: what is more urgent finds half of what can be saved up.
    pub fn can_spare(&self, spent: u64) -> bool {
        self.left.saturating_sub_unsigned(spent) > self.most / 2
    }

    /// What the running total stood at when it was last charged, ns.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// What a share of so many millionths comes to in `time` ns.
pub fn worth(time: u64, share: u64) -> u64 {
    (u128::from(time) * u128::from(share) / u128::from(WHOLE)).min(i64::MAX as u128) as u64
}

/// The share of a CPU that may be taken at most, millionths, below `limit`: whether there is CPU time to `spare`, and how much
/// was `spent` so far, ns. Where control groups leave the program a `quota` of less than a CPU, it is a share of that. A limit of a whole CPU is none, and
/// holds always.
pub fn share(limit: u64, spare: bool, spent: u64, quota: u64) -> u64 {
    let share = if limit >= WHOLE {
        return limit;
    } else if spare {
        limit
    } else if spent < CREDIT {
        limit.min(2 * CONTENDED)
    } else {
        limit.min(CONTENDED)
    };
    worth(share, quota.min(WHOLE))
}

/// How long the next look waits, ns, after one that has cost `cost` ns and could lead to nothing: looks are paid out of the share, and if one came as soon as the
/// one before was over, a small share would have nothing left for what they are for.
pub fn until_next_look(cost: u64, share: u64) -> u64 {
    let pause = u128::from(cost) * u128::from(LOOKS * WHOLE) / u128::from(share.max(1));
    pause.min(LONGEST_PAUSE.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_share_is_spent_from_the_first_second_on_and_not_all_at_once() {
        let mut pace = Pace::new(5 * SECOND, 77);
        assert_eq!(pace.left(), 0);
        pace.charge(5 * SECOND + SECOND / 10, 77, 30_000, false);
        assert_eq!(pace.left(), 3_000_000);
        // After a long rest, half a second's worth and no more.
        pace.charge(1000 * SECOND, 77, 30_000, false);
        assert_eq!(pace.left(), 15_000_000);
        // A total that begins again charges nothing.
        pace.charge(1000 * SECOND, 0, 30_000, false);
        assert_eq!((pace.left(), pace.total()), (15_000_000, 0));
    }

    #[test]
    fn where_cpus_have_time_to_spare_more_is_saved_up_and_it_is_gone_when_they_have_none() {
        let mut pace = Pace::new(0, 0);
        pace.charge(4 * SECOND, 0, 250_000, true);
        assert_eq!(pace.left(), SECOND);
        pace.charge(1000 * SECOND, 0, 250_000, true);
        assert_eq!(pace.left(), SECOND + SECOND / 4);
        pace.charge(1000 * SECOND, SECOND, 250_000, true);
        assert_eq!(pace.left(), SECOND / 4);
        pace.charge(1000 * SECOND, SECOND, 30_000, false);
        assert_eq!(pace.left(), 15_000_000);
    }

    #[test]
    fn what_had_to_be_spent_is_paid_back_for_ten_seconds_at_most() {
        let mut pace = Pace::new(0, 0);
        pace.charge(0, 100 * SECOND, 100_000, false);
        pace.charge(9 * SECOND, 100 * SECOND, 100_000, false);
        assert_eq!(pace.left(), 0);
        pace.charge(10 * SECOND + SECOND / 10, 100 * SECOND, 100_000, false);
        assert_eq!(pace.left(), SECOND / 100);
    }

    #[test]
    fn where_there_is_nothing_to_spare_little_is_taken_once_the_credit_is_spent() {
        assert_eq!(share(250_000, true, 100 * SECOND, u64::MAX), 250_000);
        assert_eq!(share(250_000, false, CREDIT - 1, u64::MAX), 2 * CONTENDED);
        assert_eq!(share(10_000, false, 0, u64::MAX), 10_000);
        assert_eq!(share(250_000, false, CREDIT, u64::MAX), CONTENDED);
        assert_eq!(share(10_000, false, CREDIT, u64::MAX), 10_000);
        assert_eq!(share(WHOLE, false, 100 * SECOND, u64::MAX), WHOLE);
        // Of a quota of half a CPU, half as much.
        assert_eq!(share(250_000, true, 0, 500_000), 125_000);
        assert_eq!(share(250_000, false, CREDIT, 500_000), CONTENDED / 2);
        assert_eq!(share(250_000, true, 0, 3_000_000), 250_000);
        assert_eq!(share(WHOLE, false, 0, 500_000), WHOLE);
    }

    #[test]
    fn looks_leave_most_of_a_share_that_is_too_small_for_one_in_each_pass() {
        // A pass in each quarter of a second, and 3 ms for a look: so it was that a program was never folded again.
        let (share, look, pass) = (3_750, 3_000_000, SECOND / 4);
        let worked_in_a_minute = |puts_off: bool| {
            let (mut pace, mut total, mut worked, mut next_look) = (Pace::new(0, 0), 0, 0, 0);
            for now in (0..60 * SECOND).step_by(pass as usize) {
                pace.charge(now, total, share, false);
                if pace.left() >= 1_000_000 {
                    (total, worked) = (total + pace.left(), worked + pace.left());
                } else if now >= next_look {
                    total += look;
                    next_look = now + if puts_off { until_next_look(look, share) } else { 0 };
                }
            }
            worked
        };
        assert_eq!(worked_in_a_minute(false), 0);
        assert!(worked_in_a_minute(true) > worth(60 * SECOND, share) / 2);
        assert_eq!(until_next_look(3_000_000, 1_000_000), 12_000_000);
        assert_eq!(until_next_look(3_000_000, 0), LONGEST_PAUSE);
    }

    #[test]
    fn what_can_wait_goes_on_at_the_rate_of_the_share_and_leaves_half_of_what_was_saved_up() {
        let (share, pass) = (30_000, SECOND / 4);
        let (mut pace, mut total) = (Pace::new(0, 0), 0);
        for now in (0..=60 * SECOND).step_by(pass as usize) {
            pace.charge(now, total, share, false);
            let mut spent = 0;
            while pace.can_spare(spent) {
                spent += 10_000;
            }
            total += spent;
            assert!(now < SECOND || pace.left() - spent + 10_000 >= worth(BURST, share) / 2);
        }
        assert!(total >= worth(59 * SECOND, share));
        assert!(!Pace::new(0, 0).can_spare(0));
    }

    #[test]
    fn shares_too_small_for_a_nanosecond_a_step_add_up() {
        let mut pace = Pace::new(0, 0);
        (1..=1000).for_each(|step| pace.charge(step * 1000, 0, 10, false));
        assert_eq!(pace.left(), 10);
    }

    proptest! {
        // Of a smaller share the millisecond is more than is kept as a debt.
        #[test]
        fn any_stretch_gets_its_share_and_what_was_saved_up(steps in prop::collection::vec((1..300_000_000u64, 0..30_000_000u64), 1..80), share in 100..1_000_000u64, spare: bool) {
            let most = if spare { SAVINGS } else { BURST };
            let mut pace = Pace::new(0, 0);
            let (mut now, mut total) = (0, 0);
            let mut all: Vec<(u64, u64)> = Vec::new();
            for (gap, wish) in steps {
                now += gap;
                pace.charge(now, total, share, spare);
                // Work is done only where something is left, and a piece of it may be over by a millisecond.
                if pace.left() > 0 {
                    let spent = wish.min(pace.left() + 1_000_000);
                    total += spent;
                    all.push((now, spent));
                }
            }
            for (i, &(from, _)) in all.iter().enumerate() {
                for j in i..all.len() {
                    let spent: u64 = all[i..=j].iter().map(|(_, spent)| spent).sum();
                    prop_assert!(spent <= worth(all[j].0 - from, share) + worth(most, share) + 1_000_001);
                }
            }
        }
    }
}
