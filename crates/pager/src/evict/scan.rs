//! What the page tables say of the pages of an extent: which are there, and which were written.
//!
//! What it is not: a decision of what goes. Background thread only.

use crate::kernel::Kernel;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::{Extent, SPLITS};
use core::sync::atomic::Ordering::Relaxed;
use memfold_sys::pagemap::{Categories, Query, Run};
use memfold_sys::{Errno, EXTENT_PAGES};

/// The pages of an extent, by a scan of the page tables.
pub struct Scan {
    /// Pages in memory, not the shared zero page.
    pub present: PageSet,
    /// Of those the ones written since the last scan that protected them.
    pub written: PageSet,
    /// The extent is one huge page, and goes as a whole or not at all.
    pub huge: bool,
}

/// Looks at the pages of an extent. With `protect`, the next look tells new writes from old ones; the extent's managed
/// pages must be registered for that.
pub fn scan(kernel: &Kernel, extent: &Extent, protect: bool) -> Result<Scan, Errno> {
    let mut scan = Scan { present: PageSet::EMPTY, written: PageSet::EMPTY, huge: false };
    let report = Categories::WRITTEN | Categories::HUGE;
    let look = Query { all: Categories::PRESENT, none: Categories::ZERO, report, protect: false };
    read_runs(kernel, extent, &look, |pages, categories| {
        scan.present = scan.present.or(&pages);
        if categories.contains(Categories::WRITTEN) {
            scan.written = scan.written.or(&pages);
        }
        scan.huge |= is_whole(extent, &pages, categories);
    })?;
    if protect {
        // What was written between the two looks counts as written too.
        for run in extent.managed.load().runs() {
            protect_written(kernel, extent, run, |pages| scan.written = scan.written.or(&pages))?;
        }
    }
    Ok(scan)
}

/// Whether pages are all of an extent as one huge page, which is not to be split.
fn is_whole(extent: &Extent, pages: &PageSet, categories: Categories) -> bool {
    let is_huge = categories.contains(Categories::HUGE) && pages.len() == EXTENT_PAGES;
    is_huge && extent.flags.load(Relaxed) & SPLITS == 0
}

/// Looks at pages of an extent and changes nothing. Written are those only of which that is tracked.
pub fn look(kernel: &Kernel, extent: &Extent, pages: PageRange) -> Result<Scan, Errno> {
    let mut scan = Scan { present: PageSet::EMPTY, written: PageSet::EMPTY, huge: false };
    let written = Categories::TRACKED | Categories::WRITTEN;
    let report = written | Categories::HUGE;
    let query = Query { all: Categories::PRESENT, none: Categories::ZERO, report, protect: false };
    read_range(kernel, extent, pages, &query, |pages, categories| {
        scan.present = scan.present.or(&pages);
        if categories.contains(written) {
            scan.written = scan.written.or(&pages);
        }
        scan.huge |= is_whole(extent, &pages, categories);
    })?;
    Ok(scan)
}

/// Has the next look take pages for unwritten that were just put back, which is no write of the program's. One that it writes before
/// this is taken for unwritten too.
pub fn forget_written(kernel: &Kernel, extent: &Extent, pages: PageRange) {
    // Where writes are not tracked the kernel refuses.
    let _ = protect_written(kernel, extent, pages, |_| {});
}

/// Tells which pages were written since the last time, and begins anew.
fn protect_written(
    kernel: &Kernel,
    extent: &Extent,
    pages: PageRange,
    mut written: impl FnMut(PageSet),
) -> Result<(), Errno> {
    let all = Categories::PRESENT | Categories::WRITTEN;
    let query = Query { all, none: Categories::ZERO, report: Categories::WRITTEN, protect: true };
    read_range(kernel, extent, pages, &query, |pages, _| written(pages))
}

pub(crate) fn read_runs(
    kernel: &Kernel,
    extent: &Extent,
    query: &Query,
    found: impl FnMut(PageSet, Categories),
) -> Result<(), Errno> {
    read_range(kernel, extent, PageRange::ALL, query, found)
}

pub(crate) fn read_range(
    kernel: &Kernel,
    extent: &Extent,
    pages: PageRange,
    query: &Query,
    mut found: impl FnMut(PageSet, Categories),
) -> Result<(), Errno> {
    let mut runs = [Run::EMPTY; 64];
    let (mut at, end) = (extent.page_addr(pages.lo), extent.page_addr(pages.hi));
    while at < end {
        let (count, stopped) = kernel.pagemap.scan(at, end, query, &mut runs)?;
        for run in &runs[..count] {
            found(extent.clip(run.start as usize, run.end as usize).set(), run.categories());
        }
        if stopped <= at {
            break;
        }
        at = stopped;
    }
    Ok(())
}
