//! Why a page is brought back, and what became of it.

/// Why the page is brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A thread waits for it.
    Fault,
    /// Pages around it are touched one after another, and the fault thread brings it along.
    Walk,
    /// It will be touched soon.
    Ahead,
    /// The mapping is about to change, or the pager to end; the caller holds the extent's lock.
    Change,
    /// Its mapping was moved past libc, and the fault thread takes it along.
    Moved,
    /// A thread waits for it, and it had to be fetched from below memory.
    Late,
}

impl Reason {
    /// Whether the one who restores gives way to an announced change.
    pub(crate) fn gives_way(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk | Reason::Ahead | Reason::Late)
    }

    /// Whether a thread waits for the first page.
    pub(crate) fn is_awaited(self) -> bool {
        matches!(self, Reason::Fault | Reason::Late)
    }

    pub(crate) fn is_fault_thread(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk | Reason::Moved)
    }

    /// Whether the fault thread does it while it serves a touch. It turns nobody away meanwhile, and wipes and wakes itself.
    pub(crate) fn is_service(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk)
    }
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// These pages are in the program's view; whoever sleeps on them is to be woken.
    Done {
        /// The first.
        first: usize,
        /// How many.
        pages: usize,
    },
    /// Somebody else is bringing the first page back, or changing its mapping: they wake who waits.
    InOtherHands,
    /// The first page is not away.
    Resident,
    /// The kernel is in the middle of a change that it has yet to report; read its messages, then try again.
    TryAgain,
    /// There is no registered mapping at the page any more.
    Gone,
    /// It lies below memory, and must be fetched first (`crate::tier`).
    Pending,
}
