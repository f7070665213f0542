//! Ranges of addresses: the whole pages that a call is about.

use memfold_sys::PAGE_SIZE;

/// The whole pages that a system call acts on.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Bounds {
    /// Those of a call with these arguments; empty where they make no sense.
    pub(crate) fn of(addr: usize, len: usize) -> Bounds {
        let start = addr & !(PAGE_SIZE - 1);
        let end = addr.saturating_add(len).min(crate::tables::space::LIMIT).next_multiple_of(PAGE_SIZE);
        Bounds { start: start.min(end), end }
    }
}
