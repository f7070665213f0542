//! One budget for many processes: who gives memory up, and who may keep more.
//!
//! A pure decision, taken about once a second. Each process has a limit on what it keeps resident; above it, it folds more
//! eagerly. While all of them together exceed the budget, the process that loses least with what it has folded, by the time
//! that its threads wait for each folded byte, gives up a part; while there is room, the one that loses most of those that keep
//! about as much as they may gets some back. Who keeps less is not held by its limit, whatever it waits for.
//!
//! What it is not: a measurement. Numbers that a process reports decide its own share only, and only within the budget.

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Bytes that it keeps in memory, its folded bytes as they are stored included.
    pub resident_bytes: u64,
    /// Bytes that are folded.
    pub evicted_bytes: u64,
    /// Time that its threads waited for folded memory since the last decision, ns.
    pub waited_ns: u64,
    /// Its limit at present, bytes; `u64::MAX` for none.
    pub limit: u64,
}

/// The smallest limit that a process gets, bytes.
pub const LEAST: u64 = 4 << 20;
/// What changes hands at a time: this part of a process's resident bytes, and at least [`LEAST`].
const STEP: u64 = 8;
/// Share of memory pressure (PSI `some avg10`, per cent) at which the budget has shrunk as far as it goes.
const PRESSURE_MOST: f64 = 50.0;

/// The budget under memory pressure: less by the share of time, in per cent, in which somebody waited for memory
/// (Documentation/accounting/psi.rst), at most by half.
pub fn under_pressure(budget: u64, some_avg10: f64) -> u64 {
    (budget as f64 * (1.0 - some_avg10.clamp(0.0, PRESSURE_MOST) / 100.0)) as u64
}

/// New limits, in the order of the processes. Only one of them changes by a decision, so that the next one sees what it cost.
pub fn divide(budget: u64, loads: &[Load]) -> Vec<u64> {
    let mut limits: Vec<u64> = loads.iter().map(|load| load.limit).collect();
    let total: u64 = loads.iter().map(|load| load.resident_bytes).sum();
    let step = |load: &Load| (load.resident_bytes / STEP).max(LEAST);
    let loss = |load: &Load| load.waited_ns as f64 / (load.evicted_bytes.max(1 << 20)) as f64;
    let by_loss = |&a: &usize, &b: &usize| {
        // Of two that lose nothing, the larger one has more to give.
        let size = loads[b].resident_bytes.cmp(&loads[a].resident_bytes);
        loss(&loads[a]).total_cmp(&loss(&loads[b])).then(size)
    };
    if total > budget {
        // Who keeps more than it may has been told already: to tell it again would bring nothing, and let one that does not
        // do as it is told, or says so, stand in for all others.
        let can_give = |&n: &usize| loads[n].resident_bytes > LEAST && loads[n].resident_bytes <= limits[n];
        let giver = (0..loads.len()).filter(can_give).min_by(by_loss);
        if let Some(n) = giver {
            let want = loads[n].resident_bytes.saturating_sub(step(&loads[n]).min(total - budget));
            limits[n] = want.max(LEAST).min(limits[n]);
        }
        return limits;
    }
    // No more than the budget is ever granted, and who is not near its limit has no use for more.
    let can_take = |&n: &usize| {
        limits[n] < budget && loads[n].resident_bytes.saturating_add(step(&loads[n])) >= limits[n]
    };
    if let Some(n) = (0..loads.len()).filter(can_take).max_by(by_loss) {
        let room = budget - total;
        // Half of the room at most: what is let go comes back by itself, and all at once.
        limits[n] =
            limits[n].max(loads[n].resident_bytes).saturating_add(step(&loads[n]).min(room / 2)).min(budget);
    }
    limits
}

/// `some avg10` of `/proc/pressure/memory`, per cent; `None` where the kernel has no PSI.
pub fn pressure() -> Option<f64> {
    parse_pressure(&std::fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn load(resident: u64, evicted: u64, waited_ns: u64) -> Load {
        Load { resident_bytes: resident * MIB, evicted_bytes: evicted * MIB, waited_ns, limit: u64::MAX }
    }

    #[test]
    fn who_loses_least_gives_first_and_who_loses_most_gets_back_first() {
        let busy = load(100, 50, 1_000_000);
        let idle = load(100, 50, 10);
        let limits = divide(150 * MIB, &[busy, idle]);
        assert_eq!(limits[0], u64::MAX);
        assert!(limits[1] < 100 * MIB, "{limits:?}");
        let limited = |load: Load| Load { limit: load.resident_bytes, ..load };
        let limits = divide(400 * MIB, &[limited(busy), limited(idle)]);
        assert!(limits[0] > 100 * MIB && limits[1] == 100 * MIB, "{limits:?}");
    }

    #[test]
    fn a_process_that_does_not_do_as_it_is_told_does_not_keep_the_others_from_it() {
        let liar = Load { limit: LEAST, ..load(1000, 1000, 0) };
        let limits = divide(150 * MIB, &[liar, load(100, 50, 1_000_000)]);
        assert_eq!(limits[0], LEAST);
        assert!(limits[1] < 100 * MIB, "{limits:?}");
    }

    #[test]
    fn after_a_peak_room_goes_to_who_is_held_by_its_limit_and_not_to_who_waits_anyway() {
        let budget = 4000 * MIB;
        // What is folded of the small ones is so by its age, and waited for now and then.
        let mut loads = [
            Load { limit: 12 * MIB, ..load(8, 2, 1_000_000) },
            Load { limit: budget, ..load(8, 2, 2_000_000) },
            Load { limit: 2 * budget, ..load(8, 2, 3_000_000) },
            Load { limit: 100 * MIB, ..load(100, 1024, 100_000_000) },
        ];
        while loads[3].limit < 1124 * MIB {
            let limits = divide(budget, &loads);
            assert!(loads.iter().zip(&limits).any(|(load, &limit)| limit > load.limit), "{loads:?}");
            for (load, limit) in loads.iter_mut().zip(limits) {
                assert!(limit >= load.limit, "{load:?}");
                load.limit = limit;
            }
            loads[3].resident_bytes = loads[3].limit.min(1124 * MIB);
        }
        assert!(loads[0].limit <= 8 * MIB + 2 * LEAST);
        // Who may keep all of the budget can be given no more of it.
        let has_all = Load { limit: 200 * MIB, ..load(180, 50, 1_000_000) };
        let limits = divide(200 * MIB, &[has_all, Load { limit: 8 * MIB, ..load(8, 50, 1) }]);
        assert!(limits[0] == 200 * MIB && limits[1] > 8 * MIB, "{limits:?}");
    }

    #[test]
    fn pressure_shrinks_the_budget_by_half_at_most() {
        assert_eq!(under_pressure(100, 0.0), 100);
        assert_eq!(under_pressure(100, 20.0), 80);
        assert_eq!(under_pressure(100, 99.0), 50);
        let text =
            "some avg10=12.50 avg60=1.00 avg300=0.04 total=1\nfull avg10=0.00 avg60=0 avg300=0 total=9\n";
        assert_eq!(parse_pressure(text), Some(12.5));
        assert_eq!(parse_pressure("nothing"), None);
    }

    proptest! {
        #[test]
        fn repeated_decisions_end_within_the_budget_whatever_the_loads(
            sizes in prop::collection::vec((8u64..500, 0u64..1_000_000), 1..9), share in 10u64..100,
        ) {
            let mut loads: Vec<Load> = sizes.iter().map(|&(size, waited)| load(size, 10, waited)).collect();
            let all: u64 = loads.iter().map(|load| load.resident_bytes).sum();
            let budget = (all * share / 100).max(loads.len() as u64 * 2 * LEAST);
            for _ in 0..2_000 {
                let limits = divide(budget, &loads);
                for (load, limit) in loads.iter_mut().zip(limits) {
                    prop_assert!(limit >= LEAST);
                    load.limit = limit;
                    // Processes do as they are told.
                    load.resident_bytes = load.resident_bytes.min(limit);
                }
            }
            prop_assert!(loads.iter().map(|load| load.resident_bytes).sum::<u64>() <= budget);
        }
    }
}
