//! Write tracking: cold is what was not written since the last look. Reads go unseen.

use super::{AccessSource, Seen};
use crate::evict::scan::{self, Scan};
use crate::kernel::Kernel;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::Extent;
use memfold_sys::Errno;

/// Asynchronous write protection, by page. Where the kernel does not track writes, everything is taken for cold.
pub(crate) struct Writes;

impl AccessSource for Writes {
    fn look(&self, kernel: &Kernel, extent: &Extent, _: u64) -> Result<Seen, Errno> {
        let scan = scan_and_begin_anew(kernel, extent)?;
        let cold = scan.present.minus(&scan.written);
        Ok(Seen { scan, cold })
    }
}

/// Looks at an extent; what is written from now on is told by the next look.
pub(super) fn scan_and_begin_anew(kernel: &Kernel, extent: &Extent) -> Result<Scan, Errno> {
    let scan = scan::scan(kernel, extent, kernel.tracks_writes)?;
    let written = if kernel.tracks_writes { scan.written } else { PageSet::EMPTY };
    Ok(Scan { written, ..scan })
}
