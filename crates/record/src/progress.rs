//! How far an experiment is.

/// Told after each piece of work how many of how many are done, and what comes next.
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
