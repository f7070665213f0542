//! Control pages seen from outside: what a folded process says of itself, and how it is asked for things.
//!
//! What it is not: the layout, which is [`memfold_pager::control`]; nor which processes there are.
//!
//! Invariants: a page is read as a file and never mapped, so one that is cut short or replaced meanwhile is an error and no signal; whatever
//! it says, reading it ends, and no text of it steers a terminal.

mod alloc;
mod counters;
mod inventory;
mod latency;
mod mailbox;
mod snapshot;
mod source;

pub use alloc::{Alloc, AllocClass};
pub use counters::{fields, Counters};
pub use inventory::{Inventory, Reasons};
pub use latency::{Latency, Percentiles};
pub use mailbox::Mailbox;
pub use memfold_pager::control::{Costs, Pages, Sizes};
#[cfg(any(test, feature = "fixture"))]
pub use snapshot::fixture;
pub use snapshot::Snapshot;
pub use source::Source;

/// A text of another process's making as one line without control characters, which a terminal would obey.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_says_moves_no_cursor() {
        assert_eq!(plain("é\x1b[2J\n"), "é\u{FFFD}[2J\u{FFFD}");
    }
}
