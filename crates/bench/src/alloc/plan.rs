//! What runs in which order, and whether it can run at all.
//!
//! Invariants: in each round every arm runs every case once, the arms of a case one after the other; which arm begins
//! changes from round to round.

use super::arm::{Arm, NotLoaded};
use super::case::Case;
use super::run::{Length, Starter};
use super::Run;
use crate::course::{turns, Course};
use crate::process::available_memory;
use crate::worker::{Ask, Program};
use crate::Unsupported;
use anyhow::{bail, ensure, Context, Result};

/// Memory that must be left beside what the blocks take, bytes.
const SPARE: u64 = 128 << 20;

/// Cases and arms that have been found fit to run.
pub(super) struct Plan<'a> {
    pub(super) cases: &'a [Case],
    pub(super) arms: Vec<Arm>,
    pub(super) starter: Starter<'a>,
}

impl<'a> Plan<'a> {
    /// Checks measures, memory, compiler and libraries.
    ///
    /// # Errors
    /// What of them is not as it should be.
    pub(super) fn new(cases: &'a [Case], arms: Vec<Arm>, program: &'a Program) -> Result<Plan<'a>> {
        ensure!(!cases.is_empty(), "there is no pattern to run");
        for case in cases {
            case.job.check().with_context(|| case.name)?;
            check_memory(case, available_memory())?;
        }
        let starter = Starter::new(program, cases)?;
        let short = Length { warm: None, ask: Ask { millis: 1, steps: 1, ..Ask::default() } };
        for arm in &arms {
            match starter.run(&cases[0], arm, 0, short) {
                Err(error) if error.downcast_ref::<NotLoaded>().is_none() => {
                    bail!(error.context(format!("a trial run with {} failed", arm.name)))
                }
                outcome => outcome?,
            };
        }
        Ok(Plan { cases, arms, starter })
    }

    /// The runs of a round, in order.
    pub(super) fn round(&self, round: usize) -> impl Iterator<Item = (&Case, &Arm)> {
        let arms: Vec<&Arm> = self.arms.iter().collect();
        let of_case = move |case| turns(&arms, round).map(|arm| (case, arm)).collect::<Vec<_>>();
        self.cases.iter().flat_map(of_case)
    }

    /// Carries out so many rounds.
    pub(super) fn runs(
        &self,
        course: &mut Course<'_>,
        rounds: usize,
        seed: u64,
        length: impl Fn(&Case) -> Length,
    ) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for round in 0..rounds {
            for (case, arm) in self.round(round) {
                let seed = seed.wrapping_add(round as u64);
                let found = course.run(&format!("{}, {}", case.name, arm.name), || {
                    self.starter.run(case, arm, seed, length(case))
                })?;
                runs.push(Run::of(case, arm, round, found));
            }
        }
        Ok(runs)
    }
}

/// Whether a case has room; allocators differ, so twice its blocks are asked for.
fn check_memory(case: &Case, available: u64) -> Result<()> {
    let needed = 2 * case.bytes() + SPARE;
    if needed > available {
        bail!(Unsupported(format!(
            "{} needs about {} MiB of memory, and {} MiB are available; choose other patterns by --pattern, or give it fewer \
             --slots or --threads",
            case.name,
            needed >> 20,
            available >> 20
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_memory_does_not_suffice_for_is_refused_with_both_figures() {
        let case: Case = "mid_mt".parse().unwrap();
        assert!(check_memory(&case, u64::MAX).is_ok());
        let refused = check_memory(&case, 100 << 20).unwrap_err();
        assert!(refused.downcast_ref::<Unsupported>().is_some());
        assert!(refused.to_string().contains("100 MiB are available"), "{refused}");
    }
}
