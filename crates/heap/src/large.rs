//! Blocks of whole pages, each a span of its own.
//!
//! What it is: the path for requests above [`classes::LARGEST`] and for alignments above a page. The span
//! has no owner, so a free of it never looks like a local one.

use crate::{classes, misuse};
use memfold_arena::{Domain, Kind, Span};
use memfold_sys::PAGE_SIZE;

/// A block of `size` bytes at a multiple of `align` (a power of two), and whether it is known to be all zero;
/// null if the kernel gives no more memory.
pub(crate) fn alloc(domain: Domain, size: usize, align: usize) -> (*mut u8, bool) {
    let pages = size.div_ceil(PAGE_SIZE).max(1);
    if misuse::guards() && domain == Domain::Managed {
        if let Some(span) = memfold_arena::alloc_guarded(pages, align) {
            misuse::note_back(span.start());
            return (span.start() as *mut u8, true);
        }
    }
    match memfold_arena::alloc(domain, pages, align.max(PAGE_SIZE), Kind::Large) {
        Some(span) => (span.start() as *mut u8, span.zero()),
        None => (core::ptr::null_mut(), false),
    }
}

/// As [`alloc`], for a block that has grown: one that [`resize`] can lengthen where it would take long to copy it. It is not known
/// to be zero.
pub(crate) fn alloc_grown(domain: Domain, size: usize) -> *mut u8 {
    let pages = size.div_ceil(PAGE_SIZE);
    if misuse::guards() && domain == Domain::Managed {
        return alloc(domain, size, PAGE_SIZE).0;
    }
    memfold_arena::alloc_movable(domain, pages).map_or(core::ptr::null_mut(), |span| span.start() as *mut u8)
}

/// Gives a block the size `size` without copying it. Returns where it is now, or null, and then nothing
/// changed. A block that would fit a size class, and is more than twice as long as asked, is not kept.
pub(crate) fn resize(span: &'static Span, size: usize) -> *mut u8 {
    if size <= classes::LARGEST && size * 2 < span.bytes() {
        return core::ptr::null_mut();
    }
    let pages = size.div_ceil(PAGE_SIZE).max(1);
    if pages == span.pages() || memfold_arena::resize(span, pages) {
        return span.start() as *mut u8;
    }
    core::ptr::null_mut()
}
