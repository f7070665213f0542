//! How much of the CPUs a program uses, and for how long it has used less than it did before.
//!
//! Who hardly runs can hardly touch anything. So what was found in use while a program was busy may be looked at again when it has been calm for a
//! while, however rarely it is looked at otherwise.

/// A use of the CPUs, by the power of two: so many bits has it in millionths of one CPU. 0 is none at all.
pub type Level = u8;

/// Levels that are told apart; the last has all of 67 CPUs and more.
const LEVELS: usize = 28;
/// So many levels lower is calm: a quarter at most.
const CALM: Level = 2;
/// The shortest and the longest time over which use is measured, ns. Over an eighth of a cold age, in which what works in bursts has several.
const SPAN: (u64, u64) = (10_000_000, 2_000_000_000);

/// What is known of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utilization {
    /// When it was last measured, and the CPU time that had been used by then; ns.
    at: u64,
    ran: u64,
    /// When each level or a higher one was last reached; 0 for never.
    reached: [u64; LEVELS],
    /// How many doublings of the cold age lie behind all levels, together.
    doublings: u32,
}

impl Utilization {
    /// Whether it is time to measure.
    pub fn is_due(&self, now: u64, cold_age: u64) -> bool {
        now.saturating_sub(self.at) >= (cold_age / 8).clamp(SPAN.0, SPAN.1)
    }

    /// The program has used so much CPU time until `now`. Whether it has now been calm for a whole cold age, or for twice as long as when this was last so.
    pub fn note(&mut self, now: u64, ran: u64, cold_age: u64) -> bool {
        let (passed, used) = (now.saturating_sub(self.at), ran.saturating_sub(self.ran));
        let is_first = self.at == 0;
        (self.at, self.ran) = (now, ran);
        if is_first || passed == 0 {
            return false;
        }
        let millionths = u128::from(used) * 1_000_000 / u128::from(passed);
        let level = (u128::BITS - millionths.leading_zeros()).min(LEVELS as u32 - 1);
        self.reached[..=level as usize].fill(now);
        let ages = |reached: u64| now.saturating_sub(reached) / cold_age.max(1);
        let known = self.reached.iter().filter(|&&reached| reached != 0);
        let doublings = known.map(|&reached| ages(reached).saturating_add(1).ilog2()).sum();
        core::mem::replace(&mut self.doublings, doublings) < doublings
    }

    /// The most that it used at a time within a cold age.
    pub fn level(&self, now: u64, cold_age: u64) -> Level {
        let lately = |&reached: &u64| reached != 0 && now.saturating_sub(reached) < cold_age;
        self.reached.iter().rposition(lately).unwrap_or(0) as Level
    }

    /// For how long it has used a quarter at most of that; 0 where a quarter of it cannot be told from nothing.
    pub fn calm_since(&self, level: Level, now: u64) -> u64 {
        match level.checked_sub(CALM) {
            None | Some(0) => 0,
            Some(below) => now.saturating_sub(self.reached[usize::from(below)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const COLD: u64 = 10 * SECOND;

    /// A second in which it uses so many thousandths of a CPU. What [`Utilization::note`] says.
    fn second(program: &mut Utilization, thousandths: u64) -> bool {
        let (now, ran) = (program.at + SECOND, program.ran + thousandths * SECOND / 1000);
        program.note(now, ran, COLD)
    }

    #[test]
    fn a_program_is_calm_for_as_long_as_it_uses_a_quarter_of_what_it_did() {
        let mut program = Utilization::default();
        for _ in 0..60 {
            second(&mut program, 900);
        }
        let busy = program.level(program.at, COLD);
        assert_eq!(program.calm_since(busy, program.at), 0);
        for _ in 0..5 {
            second(&mut program, 400);
        }
        assert_eq!(program.calm_since(busy, program.at), 0, "two fifths are no quarter");
        for second_of_it in 1..=9 {
            second(&mut program, 2);
            assert_eq!(program.calm_since(busy, program.at), second_of_it * SECOND);
            assert!(
                program.level(program.at, COLD) > program.level(program.at, SECOND),
                "it was busy lately"
            );
        }
        second(&mut program, 2);
        assert!(program.level(program.at, COLD) < busy - CALM + 1);
        second(&mut program, 900);
        assert_eq!(program.calm_since(busy, program.at), 0);
    }

    #[test]
    fn it_is_said_once_for_each_doubling_that_it_is_calm() {
        let mut program = Utilization::default();
        for _ in 0..60 {
            second(&mut program, 900);
        }
        let calm: std::vec::Vec<u64> = (1..=200).filter(|_| second(&mut program, 0)).collect();
        assert_eq!(calm, [10, 30, 70, 150]);
    }

    #[test]
    fn a_program_that_never_ran_is_not_calm() {
        let mut program = Utilization::default();
        for _ in 0..60 {
            assert!(!second(&mut program, 0));
        }
        assert_eq!((program.level(program.at, COLD), program.calm_since(0, program.at)), (0, 0));
        // What hardly runs is as it always is.
        assert_eq!(program.calm_since(CALM, u64::MAX), 0);
        // A whole machine of the largest kind.
        let mut large = Utilization { at: 1, ..Utilization::default() };
        large.note(2, u64::MAX, COLD);
        assert_eq!(usize::from(large.level(2, COLD)), LEVELS - 1);
    }

    #[test]
    fn it_is_measured_over_a_part_of_a_cold_age() {
        let program = Utilization { at: SECOND, ..Utilization::default() };
        let due = |after: u64, cold_age: u64| program.is_due(SECOND + after, cold_age);
        assert!(!due(COLD / 8 - 1, COLD) && due(COLD / 8, COLD));
        assert!(!due(2 * SECOND - 1, 9 * COLD) && due(2 * SECOND, 9 * COLD));
        assert!(!due(9_999_999, 0) && due(10_000_000, 0));
    }
}
