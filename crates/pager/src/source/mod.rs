//! Access sources: what tells which pages of an extent are cold.
//!
//! What it is not: what is done with them. A source decides what is *tried*; a page that it takes for cold is set aside like any other,
//! by [`crate::evict::set_aside`], where a touch brings it back. So a source that is wrong costs waits, which the stall budget bounds, and no byte.
//!
//! Invariants: a source is asked by the background thread alone, under the extent's lock, of extents whose writes are tracked where the
//! kernel can: with other bytes a page may shrink that did not, and one that was written can be moved, whoever tells what is cold.

mod choice;
mod hints;
pub mod kind;
mod probe;
mod told;
mod writes;

pub(crate) use choice::Choice;
pub(crate) use hints::Hints;
pub use kind::Kind;
pub(crate) use told::Told;

use crate::evict::scan::Scan;
use crate::kernel::Kernel;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::Extent;
use memfold_policy::age::Timing;
use memfold_sys::Errno;
use probe::Probe;
use writes::Writes;

/// What tells which pages of an extent are cold.
pub(crate) trait AccessSource {
    /// Looks at the pages in view, with this cold age in ns. Each look begins where the last one ended.
    fn look(&self, kernel: &Kernel, extent: &Extent, cold_age: u64) -> Result<Seen, Errno>;
}

/// What a source saw of an extent.
pub(crate) struct Seen {
    /// What is there, and what was written since the last look.
    pub scan: Scan,
    /// The pages in view that it takes for cold.
    pub cold: PageSet,
}

/// The sources of one engine, and which of them is asked.
pub(crate) struct Sources {
    in_use: Kind,
    /// What somebody outside tells.
    pub told: Told,
}

impl Sources {
    /// With the one that is always there.
    pub fn new() -> Sources {
        Sources { in_use: Kind::Probe, told: Told::new() }
    }

    /// Has another one asked from now on. Whether it is another one.
    pub fn choose(&mut self, kind: Kind) -> bool {
        core::mem::replace(&mut self.in_use, kind) != kind
    }

    /// How long the steps take.
    pub fn timing(&self) -> Timing {
        self.in_use.timing()
    }

    /// Asks it.
    pub fn look(&self, kernel: &Kernel, extent: &Extent, cold_age: u64) -> Result<Seen, Errno> {
        let source: &dyn AccessSource = match self.in_use {
            Kind::Writes => &Writes,
            kind if kind.is_told() => &self.told,
            _ => &Probe,
        };
        source.look(kernel, extent, cold_age)
    }
}
