//! The wish to stop: set by a signal's handler, looked at by everything that takes time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The user interrupted the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A wish that all copies share.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes the wish; it is never taken back.
    pub fn wish(&self) {
        // Nothing else is published with it, so no order is needed.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Goes on unless the wish was made.
    ///
    /// # Errors
    /// [`Interrupted`] once it was.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Interrupted);
        }
        Ok(())
    }
}
