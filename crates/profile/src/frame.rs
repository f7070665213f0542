//! One function of a call stack, as people are shown it.

use memfold_inspect::plain;

/// One function of a call stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its name; for code without one the file and where in it the function begins.
    pub function: String,
    /// The source file, where it is known.
    pub file: Option<String>,
    /// The line in it; 0 where it is not known.
    pub line: u32,
}

impl Frame {
    /// Of which no more is known than what it is called.
    pub fn unknown(function: &str) -> Frame {
        Frame { function: plain(function), file: None, line: 0 }
    }
}
