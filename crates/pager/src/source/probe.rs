//! Touch probing: what was not written for half a cold age is set aside, and what is not missed there is cold.
//!
//! The look is that of [`Writes`]; that it proves nothing yet is in the timing ([`memfold_policy::age::Timing::PROBE`]).

use super::writes::Writes;
use super::{AccessSource, Seen};
use crate::kernel::Kernel;
use crate::tables::extent::Extent;
use memfold_sys::Errno;

/// Reads and writes, by page, once what was written lately is left out.
pub(crate) struct Probe;

impl AccessSource for Probe {
    fn look(&self, kernel: &Kernel, extent: &Extent, cold_age: u64) -> Result<Seen, Errno> {
        Writes.look(kernel, extent, cold_age)
    }
}
