//! What a program keeps from its children, or from core dumps.
//!
//! Such memory is folded like any other. What is evicted of it lies apart, in memory that has the same property ([`crate::store::Stores`],
//! [`crate::staging`]), and stays out of tiers.

use crate::changes::mappings::First;
use crate::engine::Engine;
use crate::tables::bitmap::PageSet;
use crate::tables::bounds::Bounds;
use crate::tables::extent::Locked;
use memfold_sys::Result;

impl Engine {
    /// Runs `op`, by which children that are forked have the range no more (`MADV_DONTFORK`), or have it again. What is evicted of it comes
    /// back first, since what children have not is kept apart.
    pub fn set_forked<R>(
        &'static self,
        addr: usize,
        len: usize,
        forked: bool,
        op: impl Fn() -> Result<R>,
    ) -> Result<R> {
        self.set_apart(addr, len, op, |_, extent, pages| {
            if forked {
                extent.unforked.remove(pages);
            } else {
                extent.unforked.insert(pages);
            }
        })
    }

    /// Runs `op`, by which core dumps have the range no more (`MADV_DONTDUMP`), or have it again. What is evicted of it comes back first, since
    /// what no dump has is kept apart.
    pub fn set_dumped<R>(
        &'static self,
        addr: usize,
        len: usize,
        dumped: bool,
        op: impl Fn() -> Result<R>,
    ) -> Result<R> {
        self.set_apart(addr, len, op, |engine, extent, pages| engine.keep_from_dumps(extent, pages, !dumped))
    }

    /// Has no core dump have what is evicted of the pages from now on, or has it again. None of them is away.
    pub(crate) fn keep_from_dumps(&'static self, extent: &Locked, pages: &PageSet, kept: bool) {
        if kept {
            extent.undumped.insert(pages);
        } else {
            extent.undumped.remove(pages);
        }
        let staged =
            self.kernel().map_or(Ok(()), |kernel| kernel.staging.keep_from_dumps(extent, pages, kept));
        if staged.is_err() {
            self.leave_alone(extent, pages);
        }
    }

    fn set_apart<R>(
        &'static self,
        addr: usize,
        len: usize,
        op: impl Fn() -> Result<R>,
        set: impl Fn(&'static Engine, &Locked, &PageSet),
    ) -> Result<R> {
        let range = [Bounds::of(addr, len)];
        let result =
            self.change(&range, First::BringBack, &op, |_, extent, pages| set(self, extent, &pages.set()));
        match result {
            Ok(done) => Ok(done),
            // It may hold for a part of the range now, and nobody knows for which.
            Err(_) => self.exempt(addr, len, op),
        }
    }
}
