//! The tables: what the pager knows of the program's address space.
//!
//! Invariants: the space and the anchor are made once, by [`Tables::make`], and stay for ever.

use crate::postmortem::Anchor;
use crate::staging::Staging;
use crate::tables::pool::Pool;
use crate::tables::reservations::Reservations;
use crate::tables::space::Space;
use crate::tables::young::Young;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use memfold_sys::Result;

/// The tables.
pub(crate) struct Tables {
    /// What they are made of.
    pub pool: Pool,
    space: AtomicPtr<Space>,
    /// Where a core has it: the first that was made in `pool`, so that a page begins with it.
    anchor: AtomicPtr<Anchor>,
    /// Mappings that were noted and are not in the tables yet.
    pub young: Young,
    /// What the program has reserved and the tables do not know.
    pub reservations: Reservations,
}

impl Tables {
    /// None yet.
    pub const fn new() -> Tables {
        Tables {
            pool: Pool::new(),
            space: AtomicPtr::new(core::ptr::null_mut()),
            anchor: AtomicPtr::new(core::ptr::null_mut()),
            young: Young::new(),
            reservations: Reservations::new(),
        }
    }

    /// Makes them. Once, from one thread, before anything else. `ENOMEM` where there is no memory for them.
    pub fn make(&self) -> Result<()> {
        // SAFETY: zeros are an anchor of nothing.
        let anchor = unsafe { self.pool.make::<Anchor>() }?;
        // SAFETY: zeros are an empty space.
        let space = unsafe { self.pool.make::<Space>() }?;
        anchor.begin(space);
        self.space.store(space as *const Space as *mut Space, Release);
        self.anchor.store(anchor as *const Anchor as *mut Anchor, Release);
        Ok(())
    }

    /// From an address to its extent. After [`Tables::make`].
    pub fn space(&self) -> &'static Space {
        // Acquire: pairs with the release in `make`; no more than a plain load where it matters.
        let space = self.space.load(Acquire);
        debug_assert!(!space.is_null());
        // SAFETY: made by `make`, for ever.
        unsafe { &*space }
    }

    /// What a core is read by; `None` before there are tables.
    pub fn anchor(&self) -> Option<&'static Anchor> {
        // SAFETY: made once, for ever.
        unsafe { self.anchor.load(Acquire).as_ref() }
    }

    /// Has a core tell where staging lies.
    pub fn tell_staging(&self, staging: &Staging) {
        if let Some(anchor) = self.anchor() {
            anchor.set_staging(staging.base());
        }
    }
}
