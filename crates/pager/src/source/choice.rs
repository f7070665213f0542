//! What was chosen, and since when.
//!
//! What it is not: what comes of it ([`crate::observed`]).

use super::Kind;
use memfold_sys::time::Nanos;

/// The source that was chosen, and what is known of it.
pub(crate) struct Choice {
    /// The setting at the last look; `None` before any.
    pub asked: Option<Kind>,
    /// Since when.
    pub asked_at: Nanos,
    /// When it was last looked for a report, and when there was another one.
    pub looked_at: Nanos,
    pub heard_at: Nanos,
    /// The program was told that there is none.
    pub told: bool,
}

impl Choice {
    /// Nothing was chosen.
    pub const fn new() -> Choice {
        let never = Nanos(0);
        Choice { asked: None, asked_at: never, looked_at: never, heard_at: never, told: false }
    }
}
