//! Hints of the client: cold is what the program says that it will not touch soon. Asked beside whichever source is in use.

use super::{AccessSource, Seen};
use crate::evict::scan;
use crate::kernel::Kernel;
use crate::tables::extent::Extent;
use memfold_sys::Errno;

/// What the client library has noted in the extent (`memfold_hint`).
pub(crate) struct Hints;

impl AccessSource for Hints {
    fn look(&self, kernel: &Kernel, extent: &Extent, _: u64) -> Result<Seen, Errno> {
        let scan = scan::scan(kernel, extent, false)?;
        let cold = scan.present.and(&extent.soon.load());
        Ok(Seen { scan, cold })
    }
}
