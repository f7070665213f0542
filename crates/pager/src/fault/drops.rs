//! What the kernel is about to drop, looked at again at once: to see that it is gone before the program writes there anew.
//!
//! What it is not: needed. What was not seen here the background thread looks at, as long as it takes ([`crate::evict::discover`]).
//!
//! Invariants: fault thread only.

use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::tables::extent::Extent;
use memfold_sys::time::Nanos;
use memfold_sys::uffd::Event;

/// Most extents that are remembered. What else is dropped at the same time the background thread sees to.
const MOST: usize = 32;
/// The pause before the first look, and how many there are, each after twice the pause.
const FIRST: Nanos = Nanos(200_000);
const LOOKS: u32 = 6;

/// The extents.
pub struct Drops {
    extents: [Option<&'static Extent>; MOST],
    looks: u32,
}

impl Drops {
    /// None.
    pub const fn new() -> Drops {
        Drops { extents: [None; MOST], looks: LOOKS }
    }

    /// Takes in what a report says, which was acted on.
    pub fn note(&mut self, engine: &Engine, event: Event) {
        let Event::Remove { start, end } = event else { return };
        if !engine.traffic.goes_by_reports() {
            return;
        }
        for extent in engine.space().existing(start, end).filter(|extent| !extent.dropping.load().is_empty())
        {
            let is_it = |one: &Option<&Extent>| one.is_some_and(|one| core::ptr::eq(one, extent));
            if self.extents.iter().any(is_it) {
                continue;
            }
            let Some(place) = self.extents.iter_mut().find(|place| place.is_none()) else { break };
            *place = Some(extent);
        }
        self.looks = 0;
    }

    /// How long to wait for a message before the next look; `None` where there is nothing to look at.
    pub fn pause(&self) -> Option<Nanos> {
        (self.looks < LOOKS).then(|| Nanos(FIRST.0 << self.looks))
    }

    /// Looks at them, in a turn of the fault thread's.
    pub fn look(&mut self, engine: &Engine, kernel: &Kernel) {
        self.looks += 1;
        for place in &mut self.extents {
            if place.is_some_and(|extent| engine.release_dropped(kernel, extent)) || self.looks == LOOKS {
                *place = None;
            }
        }
        if self.extents.iter().all(Option::is_none) {
            self.looks = LOOKS;
        }
    }
}
