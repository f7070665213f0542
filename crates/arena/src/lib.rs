//! Address space and pages for the allocator.
//!
//! What it is: chunks of whole, aligned extents taken from the kernel, cut into spans (runs of pages) that
//! are handed out, taken back, merged, reused while still resident, and given back to the kernel. There are
//! two domains: managed memory, which a pager may evict, and pinned memory, which stays. The record of
//! every span lies out of line in pinned memory and is found from an address without a lock.
//!
//! What it is not: an allocator of blocks (that is the crate `heap`), or a pager: it only tells one, through
//! [`Hooks`], what becomes of managed memory.
//!
//! Invariants: no lock is held while a hook or the kernel works on managed memory, nor while managed memory
//! is touched; nothing here allocates through libc, sets `errno` or uses thread-local storage. Order of
//! locks: guarded blocks, managed pool, pinned pool, records.
#![no_std]

#[cfg(test)]
extern crate std;

mod chunk;
mod counters;
mod density;
mod guarded;
mod hooks;
mod kind;
mod lock;
mod pagemap;
mod pool;
mod records;
mod runs;
pub mod settings;
mod span;
mod supply;
mod sync;

pub use counters::{Counter, Counters, COUNTERS};
pub use hooks::{is_away, plain_remap, set_hooks, Hooks, PLAIN};
pub use lock::{Guard, Mutex};
pub use pagemap::lookup;
pub use records::pinned_bytes;
pub use settings::Knob;
pub use span::{Domain, Kind, Span, MOST_SLOTS};

use memfold_sys::PAGE_SIZE;

/// Blocks of more pages than this (64 MiB) get a chunk to themselves, which the kernel can resize, and which is unmapped
/// when they are freed. What is shorter comes from free runs, and stays one for as long as the profile allows: programs that
/// take and free such blocks by turns would fault in each of their pages each time.
pub const SHARED_PAGES: usize = chunk::MAX_SHARED / PAGE_SIZE;

/// Blocks that grow get a chunk to themselves from so many pages on (16 MiB), where [`alloc_movable`] is asked for them.
pub const MOVABLE_PAGES: usize = (16 << 20) / PAGE_SIZE;

/// Hands out `pages` pages (at least one) at a multiple of `align` bytes (a power of two, at least a page).
///
/// `kind` is [`Kind::Blocks`] or [`Kind::Large`]. `None` if the kernel gives no more memory.
pub fn alloc(domain: Domain, pages: usize, align: usize, kind: Kind) -> Option<&'static Span> {
    debug_assert!(pages > 0 && align.is_power_of_two() && align >= PAGE_SIZE);
    let need = pages.checked_add(align / PAGE_SIZE - 1)?;
    let dedicated = need > SHARED_PAGES && kind == Kind::Large;
    hand_out(domain, pages, align, kind, dedicated)
}

/// As [`alloc`], for a block that has grown and may grow again: from [`MOVABLE_PAGES`] on it gets a chunk to itself, so that
/// [`resize`] never copies it.
pub fn alloc_movable(domain: Domain, pages: usize) -> Option<&'static Span> {
    let dedicated = pages > MOVABLE_PAGES;
    hand_out(domain, pages, PAGE_SIZE, Kind::Large, dedicated)
}

fn hand_out(
    domain: Domain,
    pages: usize,
    align: usize,
    kind: Kind,
    dedicated: bool,
) -> Option<&'static Span> {
    let need = pages.checked_add(align / PAGE_SIZE - 1)?;
    let attempt = || loop {
        if dedicated {
            return supply::map_dedicated(domain, pages, align);
        }
        if let Some(span) = supply::take(domain, pages, align, kind) {
            return Some(span);
        }
        if !supply::grow(domain, need, kind) {
            return None;
        }
    };
    let span = attempt().or_else(|| {
        // At a limit of memory or address space, what is cached may be what is missing.
        (trim(0) > 0).then(attempt).flatten()
    })?;
    if kind == Kind::Large {
        COUNTERS.large_blocks.add(1);
        COUNTERS.large_bytes.add(span.bytes());
    }
    Some(span)
}

/// Makes the first `bytes` bytes of a span of kind [`Kind::Large`] zero that was just handed out and that nobody has written to. Pages
/// that are zero already are not touched, so that they need no frames.
pub fn clear(span: &'static Span, bytes: usize) {
    debug_assert!(span.kind() == Kind::Large && bytes <= span.bytes());
    if !span.zero() {
        supply::clear(span, bytes);
    }
}

/// Hands out one block of `pages` pages at a multiple of `align` bytes, all zero, in a mapping of its own, with a MiB before and
/// behind it that cannot be touched. `None` if the kernel gives no more memory or no more mappings.
///
/// When it is freed it cannot be touched either, and its address serves again only after much else was freed ([`guarded`]).
pub fn alloc_guarded(pages: usize, align: usize) -> Option<&'static Span> {
    let span = guarded::take(pages, align)?;
    COUNTERS.large_blocks.add(1);
    COUNTERS.large_bytes.add(span.bytes());
    Some(span)
}

/// Hands out `pages` pages, a multiple of an extent's, that can never be touched and never go back: addresses and nothing else.
/// `None` if the kernel gives no more mappings.
pub fn alloc_untouchable(pages: usize) -> Option<&'static Span> {
    guarded::map_untouchable(pages)
}

/// From now on, what is free in managed memory is used no more: the chunks that follow lie between guards where
/// [`Knob::Guard`] is on. To be called once, before the program has more than a few blocks.
pub fn start_afresh() {
    pool::pool(Domain::Managed).lock().forget_free();
}

/// Takes a span back, of which only the first `touched` pages were ever touched since it was handed out.
pub fn free(span: &'static Span, touched: usize) {
    if span.kind() != Kind::Large || begin_to_free(span) {
        give_back(span, touched);
    }
}

/// Takes a span of kind [`Kind::Large`] back, once `look` has looked at it for the last time. False, and nothing is done, if another
/// thread was faster.
pub fn free_large(span: &'static Span, look: impl FnOnce()) -> bool {
    let is_first = begin_to_free(span);
    if is_first {
        look();
        give_back(span, span.pages());
    }
    is_first
}

fn begin_to_free(large: &Span) -> bool {
    let is_first = large.change_kind(Kind::Large, Kind::Busy);
    if is_first {
        COUNTERS.large_blocks.sub(1);
        COUNTERS.large_bytes.sub(large.bytes());
    }
    is_first
}

fn give_back(span: &'static Span, touched: usize) {
    match span.chunk.get() {
        Some(chunk) if chunk.dedicated.get() && chunk.lead.get() > 0 => guarded::give_back(span, chunk),
        Some(chunk) if chunk.dedicated.get() => supply::unmap_dedicated(span, chunk),
        _ => supply::give_back(span, touched),
    }
}

/// Makes `bytes` of managed memory resident that small programs will use first (`MADV_POPULATE_WRITE`, Linux 5.14).
/// Where that cannot be, they become so when they are touched.
pub fn prewarm(bytes: usize) {
    let pages = bytes / PAGE_SIZE;
    if pages == 0 {
        return;
    }
    if let Some(span) = alloc(Domain::Managed, pages, PAGE_SIZE, Kind::Blocks) {
        COUNTERS.madvise_calls.add(1);
        // SAFETY: the span is ours and unused.
        let done =
            unsafe { memfold_sys::mem::madvise(span.start(), span.bytes(), libc::MADV_POPULATE_WRITE) }
                .is_ok();
        free(span, if done { pages } else { 0 });
    }
}

/// Gives frames of free runs back that were left alone for the time that the settings say. For a thread that looks after an
/// idle process now and then; where nobody calls it, the next free does it. Returns the bytes given.
pub fn decay() -> usize {
    let pages: usize = [Domain::Managed, Domain::Pinned].map(supply::purge_idle).iter().sum();
    pages * PAGE_SIZE
}

/// Gives a large span the length `pages` (at least one), in place or, where it has a chunk to itself, by
/// moving the mapping; its contents follow and its start may change. False, and nothing changed, if that
/// cannot be done without copying.
pub fn resize(span: &'static Span, pages: usize) -> bool {
    debug_assert!(span.kind() == Kind::Large && pages > 0);
    let before = span.bytes();
    let resized = match span.chunk.get() {
        Some(chunk) if chunk.lead.get() > 0 && chunk.dedicated.get() => guarded::resize(span, chunk, pages),
        Some(chunk) if chunk.dedicated.get() => supply::resize_dedicated(span, chunk, pages),
        _ if pages > span.pages() => supply::extend(span, pages),
        _ => {
            if pages < span.pages() {
                supply::shorten(span, pages);
            }
            true
        }
    };
    COUNTERS.large_bytes.add(span.bytes());
    COUNTERS.large_bytes.sub(before);
    resized
}

/// Gives the frames of free runs in both domains back, all but `keep` bytes each. Returns the bytes given.
pub fn trim(keep: usize) -> usize {
    guarded::unmap_free();
    let pages: usize =
        [Domain::Managed, Domain::Pinned].map(|domain| supply::purge(domain, keep / PAGE_SIZE)).iter().sum();
    pages * PAGE_SIZE
}

/// Calls `f(base, len)` for every managed chunk. `f` runs under the arena's lock: it must not call the
/// arena, allocate, or wait for somebody who does.
pub fn for_each_managed(mut f: impl FnMut(usize, usize)) {
    let pool = pool::pool(Domain::Managed).lock();
    let mut chunk = pool.chunks;
    while let Some(this) = chunk {
        f(this.base.get(), this.len.get());
        chunk = this.next.get();
    }
}

/// Calls `f` for every span of a shared chunk of a domain that is handed out all the time, and for some of the others. `f` runs under
/// the arena's lock, as for [`for_each_managed`], but the lock is free between two chunks: there may be very many spans.
pub fn for_each_span(domain: Domain, mut f: impl FnMut(&Span)) {
    let mut place = None;
    while let Some(next) = for_each_span_after(domain, place, &mut f) {
        place = Some(next);
    }
}

/// Calls `f` for every span of the chunk that follows a place in the list, or of the first, and returns where that is.
fn for_each_span_after(
    domain: Domain,
    place: Option<pool::Place>,
    f: &mut impl FnMut(&Span),
) -> Option<pool::Place> {
    let pool = pool::pool(domain).lock();
    let next = pool.chunk_after(place)?;
    let (chunk, _) = next;
    let mut at = chunk.start();
    while at < chunk.end() && !chunk.dedicated.get() {
        let Some(span) = lookup(at).filter(|span| span.start() == at) else { break };
        if matches!(span.kind(), Kind::Blocks | Kind::Large) {
            f(span);
        }
        at = span.end();
    }
    Some(next)
}

/// Takes every lock of the arena, in order, so that a child sees its records at rest. The caller does
/// nothing but `fork` before [`fork_release`].
pub fn fork_prepare() {
    guarded::hold();
    pool::pool(Domain::Managed).hold();
    pool::pool(Domain::Pinned).hold();
    records::hold();
}

/// Releases what [`fork_prepare`] took, in the parent and in the child.
///
/// # Safety
/// The calling thread called [`fork_prepare`], or is its copy in the child.
pub unsafe fn fork_release(in_child: bool) {
    // SAFETY: held by `fork_prepare`, by the caller's contract.
    unsafe {
        records::release(in_child);
        pool::pool(Domain::Pinned).release(in_child);
        pool::pool(Domain::Managed).release(in_child);
        guarded::release(in_child);
    }
}

#[cfg(test)]
mod tests;
