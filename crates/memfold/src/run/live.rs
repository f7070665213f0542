//! The quiet live line of `--progress`: what is saved so far, on a terminal, in one line that the program's own output may overwrite.

use crate::text::{bytes, note};
use memfold_inspect::Snapshot;
use std::io::IsTerminal;

/// Erases from the cursor to the end of the line (ECMA-48, EL).
const ERASE: &str = "\x1b[K";

/// The line. Without a terminal on standard error there is none, and nothing is ever printed.
#[derive(Debug)]
pub struct Line {
    shown: bool,
    terminal: bool,
}

impl Line {
    /// One that is shown if `wanted`, on a terminal.
    pub fn new(wanted: bool) -> Line {
        Line { shown: false, terminal: wanted && std::io::stderr().is_terminal() }
    }

    /// Shows what the processes of a run save now.
    pub fn show<'a>(&mut self, pages: impl Iterator<Item = &'a Snapshot>) {
        if self.terminal {
            // The cursor stands at the start: what the program prints next takes the line's place.
            note(&format!("{}{ERASE}\r", line(pages)));
            self.shown = true;
        }
    }

    /// Removes it.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            note(ERASE);
        }
    }
}

fn line<'a>(pages: impl Iterator<Item = &'a Snapshot>) -> String {
    let (mut saved, mut evicted, mut managed) = (0u64, 0u64, 0u64);
    for page in pages {
        saved = saved.saturating_add(page.sizes.saved_bytes);
        evicted = evicted.saturating_add(page.sizes.evicted_bytes);
        managed = managed.saturating_add(page.sizes.managed_bytes);
    }
    format!("memfold: {} saved so far ({} of {} folded)", bytes(saved), bytes(evicted), bytes(managed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_adds_up_and_is_shown_on_terminals_alone() {
        assert_eq!(line(std::iter::empty()), "memfold: 0 B saved so far (0 B of 0 B folded)");
        let mut unwanted = Line::new(false);
        unwanted.show(std::iter::empty());
        assert!(!unwanted.shown);
    }
}
