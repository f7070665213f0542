//! One tier for many processes: how many bytes of it each may take.
//!
//! A pure decision, taken about once a second. Each gets a part by what it has cold. Who has more there than its part gets no more, and
//! brings the rest back by itself; the others get it when it is free.
//!
//! What it is not: a measurement, nor a way to take anything back. What lies in a tier is a process's own.
//!
//! Invariants: what all have there and may yet put there is never more than the tier, if it was not before: a part grows only by what is free while
//! everybody goes by what was said before.

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes of its memory that are folded, wherever they lie.
    pub cold_bytes: u64,
    /// Bytes that it has in the tier.
    pub held_bytes: u64,
    /// Bytes that it may have there at present.
    pub limit: u64,
}

/// What counts as cold of a process that has nothing yet, bytes.
const LEAST: u64 = 16 << 20;

/// New limits, in the order of the processes.
pub fn divide(size: u64, parts: &[Part]) -> Vec<u64> {
    let fair = fair(size, parts);
    let taken: u64 = parts.iter().map(|part| part.held_bytes.max(part.limit)).fold(0, u64::saturating_add);
    let free = u128::from(size.saturating_sub(taken));
    let has = |part: &Part| part.held_bytes.max(part.limit);
    let raise = |part: &Part, fair: u64| u128::from(fair.saturating_sub(has(part)));
    let raises: u128 = parts.iter().zip(&fair).map(|(part, fair)| raise(part, *fair)).sum();
    parts
        .iter()
        .zip(&fair)
        .map(|(part, &fair)| match raise(part, fair) {
            0 => fair,
            // A part that grows as far as there is room for all that are to.
            more => has(part) + (more * free.min(raises) / raises) as u64,
        })
        .collect()
}

/// What each should have in the end.
fn fair(size: u64, parts: &[Part]) -> Vec<u64> {
    let weight = |part: &Part| u128::from(part.cold_bytes.saturating_add(LEAST));
    let all: u128 = parts.iter().map(weight).sum();
    parts.iter().map(|part| (u128::from(size) * weight(part)).checked_div(all).unwrap_or(0) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn part(cold: u64, held: u64, limit: u64) -> Part {
        Part { cold_bytes: cold * MIB, held_bytes: held * MIB, limit: limit * MIB }
    }

    /// What is left after so many decisions, of processes that fill what they may.
    fn after(rounds: usize, size: u64, parts: &mut [Part]) {
        for _ in 0..rounds {
            let limits = divide(size, parts);
            for (part, limit) in parts.iter_mut().zip(limits) {
                part.limit = limit;
                part.held_bytes = part.held_bytes.max(limit.min(part.cold_bytes));
            }
        }
    }

    #[test]
    fn each_gets_a_part_by_what_it_has_cold() {
        let mut parts = [part(300, 0, 0), part(100, 0, 0)];
        after(1, 100 * MIB, &mut parts);
        let [one, other] = parts.map(|part| part.limit / MIB);
        assert!((70..=75).contains(&one) && (25..=29).contains(&other), "{one} {other}");
    }

    #[test]
    fn who_has_more_than_its_part_keeps_that_and_gets_no_more_until_it_comes_back() {
        let mut parts = [part(100, 0, 0), part(0, 0, 0)];
        after(1, 100 * MIB, &mut parts);
        assert!(parts[0].held_bytes > 80 * MIB, "{parts:?}");
        parts[1].cold_bytes = 900 * MIB;
        after(3, 100 * MIB, &mut parts);
        assert!(parts[0].limit < parts[0].held_bytes, "{parts:?}");
        assert!(parts[1].limit + parts[0].held_bytes <= 100 * MIB, "{parts:?}");
        // It is touched.
        parts[0] = Part { held_bytes: 0, cold_bytes: 0, ..parts[0] };
        after(3, 100 * MIB, &mut parts);
        assert!(parts[1].limit > 95 * MIB, "{parts:?}");
    }

    proptest! {
        #[test]
        fn never_more_is_there_than_the_tier_has_whatever_happens(
            sizes in prop::collection::vec((0u64..1000, 0u64..1000), 1..9), size in 16u64..2000,
        ) {
            let mut parts: Vec<Part> = sizes.iter().map(|&(cold, _)| part(cold, 0, 0)).collect();
            for round in 0..4 {
                let limits = divide(size * MIB, &parts);
                // Each is told at its own time, and fills what it may meanwhile: by the old word or by the new.
                let most = |(part, limit): (&Part, &u64)| part.held_bytes.max(part.limit).max(*limit);
                prop_assert!(parts.iter().zip(&limits).map(most).sum::<u64>() <= size * MIB);
                for (n, (part, limit)) in parts.iter_mut().zip(limits).enumerate() {
                    part.held_bytes = part.held_bytes.max(part.limit.max(limit).min(part.cold_bytes));
                    part.limit = limit;
                    if (n + round) % 3 == 0 {
                        part.cold_bytes = sizes[n].1 * MIB;
                        part.held_bytes = part.held_bytes.min(part.cold_bytes);
                    }
                }
            }
        }
    }
}
