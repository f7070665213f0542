//! Forked children of a program that nobody prepared for forks: what was away in their parent when they were forked is owed to them.
//!
//! The kernel reports such a fork with a userfaultfd for the child's memory. Whatever is owed is copied into the child from what the parent has of it, what the
//! child waits for first; then the child's userfaultfd is closed, and the child goes on without a pager. Nothing of the agent's is in its memory.
//!
//! What it is not: for programs that come by a fork through the library ([`crate::changes::forking`]), whose children have a pager of their own.
//!
//! Invariants: fault thread only. The background thread stands still while anything is owed, and the tier's thread brings nothing back but fetches what the
//! fault thread asks for, so pages that are away stay what they are; before the fault thread brings one back, drops it or moves it along, the children get it.

mod filling;

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The children.
pub(crate) struct Children {
    /// A `filling::Work`; null while nothing is owed.
    work: AtomicPtr<()>,
    /// 1 while the tier's thread may bring nothing back.
    alone: AtomicU32,
}

impl Children {
    /// None.
    pub const fn new() -> Children {
        Children { work: AtomicPtr::new(core::ptr::null_mut()), alone: AtomicU32::new(0) }
    }

    /// Whether anything is owed to any.
    pub fn are_owed(&self) -> bool {
        !self.work.load(Relaxed).is_null()
    }

    /// Whether anything is, or is just being looked for: nobody but the fault thread brings pages back that were below memory.
    pub fn have_it_alone(&self) -> bool {
        self.alone.load(SeqCst) != 0
    }
}
