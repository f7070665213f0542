//! What a program keeps from its children, or from core dumps.
//!
//! Such memory is folded like any other. What is evicted of it lies apart, in memory that has the same property ([`crate::store::Stores`],
//! [`crate::staging`]), and stays out of tiers.

use crate::changes::mappings::First;
use crate::engine::Engine;
use crate::tables::bitmap::PageSet;
use crate::tables::bounds::Bounds;
use crate::tables::extent::Locked;
use core::cell::Cell;
use memfold_sys::{Result, PAGE_SIZE};

impl Engine {
    /// Runs `op`, by which children that are forked have the range no more (`MADV_DONTFORK`), or have it again. What is evicted of it comes
    /// back first, since what children have not is kept apart. Where `op` fails it may hold for a part of the range, and nobody knows for which: all of it is left
    /// alone.
    pub fn set_forked<R>(
        &'static self,
        addr: usize,
        len: usize,
        forked: bool,
        op: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.set_apart(addr, len, op, |engine, extent, pages, is_done| match (is_done, forked) {
            (false, _) => engine.leave_alone(extent, pages),
            (true, false) => {
                extent.unforked.insert(pages);
            }
            (true, true) => {
                extent.unforked.remove(pages);
            }
        })
    }

    /// Runs `op`, by which core dumps have the range no more (`MADV_DONTDUMP`), or have it again. What is evicted of it comes back first, since
    /// what no dump has is kept apart. Where `op` fails, no dump has any of it by the pager.
    pub fn set_dumped<R>(
        &'static self,
        addr: usize,
        len: usize,
        dumped: bool,
        op: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if dumped && !self.has_any(addr, len, |extent| extent.undumped.load()) {
            return op();
        }
        self.set_apart(addr, len, op, |engine, extent, pages, is_done| {
            engine.keep_from_dumps(extent, pages, !(is_done && dumped))
        })
    }

    /// Has no core dump have what is evicted of the pages from now on, or has it again.
    pub(crate) fn keep_from_dumps(&'static self, extent: &Locked, pages: &PageSet, kept: bool) {
        if !kept {
            extent.undumped.remove(pages);
            return;
        }
        extent.undumped.insert(pages);
        if self.kernel().is_some_and(|kernel| kernel.staging.keep_from_dumps(extent, pages).is_err()) {
            self.leave_alone(extent, pages);
        }
    }

    /// The frame of both; `set` is told whether `op` succeeded.
    fn set_apart<R>(
        &'static self,
        addr: usize,
        len: usize,
        op: impl FnOnce() -> Result<R>,
        set: impl Fn(&'static Engine, &Locked, &PageSet, bool),
    ) -> Result<R> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            // Which the kernel refuses, and does nothing.
            return op();
        }
        let is_done = Cell::new(false);
        let noted = || {
            let result = op();
            is_done.set(result.is_ok());
            Ok(result)
        };
        let range = [Bounds::of(addr, len)];
        self.change(&range, First::BringBack, noted, |_, extent, pages| {
            set(self, extent, &pages.set(), is_done.get());
        })?
    }
}
