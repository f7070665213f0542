//! Blocks of whole pages, each a span of its own.
//!
//! What it is: the path for requests above [`classes::LARGEST`] and for alignments above a page. The span
//! has no owner, so a free of it never looks like a local one.

use crate::{classes, misuse, slots};
use memfold_arena::{Domain, Kind, Span};
use memfold_sys::PAGE_SIZE;

/// Bytes behind what was asked for that are a canary, at most; what lies further behind is only room.
const CANARY: usize = 64;

/// A block of `size` bytes at a multiple of `align` (a power of two), and whether it is known to be all zero;
/// null if the kernel gives no more memory.
pub(crate) fn alloc(domain: Domain, size: usize, align: usize) -> (*mut u8, bool) {
    let pages = size.div_ceil(PAGE_SIZE).max(1);
    if misuse::guards() && domain == Domain::Managed {
        if let Some(span) = memfold_arena::alloc_guarded(pages, align) {
            return (begin(span, size), true);
        }
    }
    match memfold_arena::alloc(domain, pages, align.max(PAGE_SIZE), Kind::Large) {
        Some(span) => (begin(span, size), span.zero()),
        None => (core::ptr::null_mut(), false),
    }
}

/// As [`alloc`], for a block that has grown: one that [`resize`] can lengthen where it would take long to copy it. It is not known
/// to be zero.
pub(crate) fn alloc_grown(domain: Domain, size: usize) -> *mut u8 {
    if misuse::guards() && domain == Domain::Managed {
        return alloc(domain, size, PAGE_SIZE).0;
    }
    let span = memfold_arena::alloc_movable(domain, size.div_ceil(PAGE_SIZE));
    span.map_or(core::ptr::null_mut(), |span| begin(span, size))
}

/// Makes a span a block of `size` bytes.
fn begin(span: &'static Span, size: usize) -> *mut u8 {
    let slack = if misuse::is_on() { span.bytes() - size } else { 0 };
    span.set_slack(slack);
    if slack > 0 {
        slots::seal_end(span.start() + size, slack.min(CANARY));
    }
    span.start() as *mut u8
}

/// How many bytes of a block the program may use. Where blocks are checked, the program ends if it used more.
pub(crate) fn usable_size(span: &Span) -> usize {
    let (size, slack) = (span.bytes() - span.slack(), span.slack());
    if slack > 0 {
        slots::must_be_sealed_end(span.start() + size, slack.min(CANARY), span.start());
    }
    size
}

/// Gives a block the size `size` without copying it. Returns where it is now, or null, and then nothing
/// changed. A block that would fit a size class, and is more than twice as long as asked, is not kept.
pub(crate) fn resize(span: &'static Span, size: usize) -> *mut u8 {
    if size <= classes::LARGEST && size * 2 < span.bytes() {
        return core::ptr::null_mut();
    }
    let pages = size.div_ceil(PAGE_SIZE).max(1);
    if pages == span.pages() || memfold_arena::resize(span, pages) {
        return begin(span, size);
    }
    core::ptr::null_mut()
}
