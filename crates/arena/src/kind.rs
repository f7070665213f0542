//! What memory is for, and what became of a run of pages.

/// Which kind of memory: may the pager take it?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Domain {
    /// May be evicted: everything that user data lives in.
    Managed = 0,
    /// Never evicted.
    Pinned = 1,
}

/// The state of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The record describes nothing.
    Unused = 0,
    /// In the free lists.
    Free = 1,
    /// Handed out, cut into blocks; each of its pages maps to the record.
    Blocks = 2,
    /// Handed out as one block; its first and last page map to the record.
    Large = 3,
    /// Out of the free lists while the kernel gives its frames back, or about to be put into them.
    Busy = 4,
}
