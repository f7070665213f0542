//! The order of an experiment's runs, and how far they are.

use anyhow::{Context, Result};

/// Told before each piece of work how many of how many are done, and what comes next.
pub type Progress<'a> = &'a mut dyn FnMut(Advance<'_>);

/// One report of progress.
#[derive(Clone, Copy, Debug)]
pub struct Advance<'a> {
    /// Pieces of work done.
    pub done: u64,
    /// Pieces of work in all.
    pub total: u64,
    /// What is under way.
    pub what: &'a str,
}

/// The arms of a repeat, one after the other; another one begins in the next, so that none always follows the same.
pub fn turns<A: Clone>(arms: &[A], repeat: usize) -> impl Iterator<Item = A> + '_ {
    (0..arms.len()).map(move |place| arms[(place + repeat) % arms.len()].clone())
}

/// The runs of every arm on every subject, in their order: in each repeat all subjects, and on each the arms in turns.
pub fn plan<S: Clone, A: Clone>(subjects: &[S], arms: &[A], repeats: usize) -> Vec<(S, usize, A)> {
    let mut plan = Vec::with_capacity(repeats.saturating_mul(subjects.len() * arms.len()).min(1 << 20));
    for repeat in 0..repeats {
        for subject in subjects {
            plan.extend(turns(arms, repeat).map(|arm| (subject.clone(), repeat, arm)));
        }
    }
    plan
}

/// An experiment under way: each of its runs is told before it begins, and named where it fails.
pub struct Course<'a> {
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Course<'a> {
    /// With so many runs in all.
    pub fn of(total: usize, progress: Progress<'a>) -> Course<'a> {
        Course { progress, done: 0, total: total as u64 }
    }

    /// Carries out the next run.
    ///
    /// # Errors
    /// What it met, with its name.
    pub fn run<T>(&mut self, what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        (self.progress)(Advance { done: self.done, total: self.total, what });
        self.done += 1;
        run().with_context(|| format!("{what} failed"))
    }

    /// All runs are over; what is left to do.
    pub fn over(self, what: &str) {
        (self.progress)(Advance { done: self.total, total: self.total, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_each_repeat_every_arm_meets_every_subject_once_and_another_begins_in_the_next() {
        let order: Vec<String> = plan(&["x", "y"], &["a", "b"], 2)
            .into_iter()
            .map(|(subject, repeat, arm)| format!("{subject}{repeat}{arm}"))
            .collect();
        assert_eq!(order, ["x0a", "x0b", "y0a", "y0b", "x1b", "x1a", "y1b", "y1a"]);
    }

    #[test]
    fn each_run_is_told_before_it_begins_and_named_where_it_fails() {
        let mut told = Vec::new();
        let mut progress =
            |advance: Advance<'_>| told.push((advance.done, advance.total, advance.what.to_owned()));
        let mut course = Course::of(2, &mut progress);
        assert_eq!(course.run("the first", || Ok(7)).unwrap(), 7);
        let failed = course.run("the second", || anyhow::bail!("no memory")).map(|(): ()| ()).unwrap_err();
        assert_eq!(format!("{failed:#}"), "the second failed: no memory");
        course.over("plots");
        let all = [(0, "the first"), (1, "the second"), (2, "plots")];
        assert_eq!(told, all.map(|(done, what)| (done, 2, what.to_owned())));
    }
}
