//! Files that this process has left while children may have had them: nothing here names anything in them, but they take what they took until the last
//! child that reads there has ended or left them too.
//!
//! Background thread only.

use memfold_sys::file::{self, Fd};

/// How many are kept in view.
const MOST: usize = 128;

/// Them.
#[derive(Clone, Copy)]
pub(super) struct Left([Option<One>; MOST]);

/// One of them. What is mapped in a child has it locked, and this descriptor has not.
#[derive(Clone, Copy)]
struct One {
    descriptor: i32,
    segments: u64,
}

impl Left {
    /// None.
    pub(super) const NONE: Left = Left([None; MOST]);

    /// Whether another one can be kept in view.
    pub(super) fn has_place(&self) -> bool {
        self.0.iter().any(Option::is_none)
    }

    /// Takes over a file that has so many segments, if it has a place.
    pub(super) fn add(&mut self, fd: Fd, segments: u64) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(One { descriptor: fd.into_raw(), segments });
        }
    }

    /// How many segments all of them have.
    pub(super) fn segments(&self) -> u64 {
        self.0.iter().flatten().map(|one| one.segments).sum()
    }

    /// Lets go of those that nobody has any more.
    pub(super) fn look_after(&mut self) {
        for place in &mut self.0 {
            if let Some(one) = place.take_if(|one| !file::is_locked(one.descriptor)) {
                // SAFETY: taken over by `add`, and nobody else closes it.
                drop(unsafe { Fd::from_raw(one.descriptor) });
            }
        }
    }
}
