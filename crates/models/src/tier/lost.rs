//! The last words of the process, in a model: without where it was.

use crate::engine::Engine;
use crate::tier::below::Below;
use crate::tier::location::Berth;
use memfold_sys::Errno;

/// As in the pager.
pub fn fail(engine: &Engine, _: &Below, _: Berth, error: Errno) -> ! {
    engine.fail_hard(error.name())
}
