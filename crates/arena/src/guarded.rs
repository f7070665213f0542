//! Large blocks between guards, each in a chunk of its own; and pages that can never be touched.
//!
//! What it is: for programs whose misuse of blocks is looked for. A block that is freed loses its frames and cannot be touched:
//! neither read nor written, as long as its address does not serve again; and that it does only after so many bytes more were
//! freed. Until then a second free finds its record. What it is not: fast; each of the two ways takes a call or two of the
//! kernel, but no new mapping.
//!
//! Invariants: a free block is in the list, its record is of kind [`Kind::Free`], and its chunk can be touched nowhere. A chunk
//! here has a lead, which tells it from other dedicated ones.

use crate::chunk::{Chunk, Purpose};
use crate::lock::Mutex;
use crate::pool::pool;
use crate::span::{Domain, Kind, Span};
use crate::supply::{map_chunk, unmap_chunk, unmap_dedicated};
use crate::{hooks, pagemap, records};
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};

/// Bytes before and behind a block that cannot be touched, at least: who misses it by a MiB hits them.
const MARGIN: usize = EXTENT_SIZE / 2 + (64 << 10);

/// A block serves again when so many bytes of blocks were freed after it.
const HELD: usize = 32 << 20;

/// More bytes than this, or more blocks, are not kept: the one that was freed first is unmapped.
const KEPT: usize = 4 * HELD;
const KEPT_BLOCKS: usize = 512;

/// So many blocks are looked at for one of the right length.
const TRIES: usize = 16;

/// Free blocks, in the order in which they were freed.
struct Freed {
    first: Option<&'static Span>,
    last: Option<&'static Span>,
    bytes: usize,
    blocks: usize,
}

static FREED: Mutex<Freed> = Mutex::new(Freed { first: None, last: None, bytes: 0, blocks: 0 });

impl Freed {
    fn push(&mut self, span: &'static Span) {
        span.next.set(None);
        match self.last {
            Some(last) => last.next.set(Some(span)),
            None => self.first = Some(span),
        }
        self.last = Some(span);
        self.bytes += span.bytes();
        self.blocks += 1;
    }

    /// Takes the block behind `before` out, or the first.
    fn remove(&mut self, before: Option<&'static Span>) -> Option<&'static Span> {
        let span = before.map_or(self.first, |before| before.next.get())?;
        let after = span.next.take();
        match before {
            Some(before) => before.next.set(after),
            None => self.first = after,
        }
        if after.is_none() {
            self.last = before;
        }
        self.bytes -= span.bytes();
        self.blocks -= 1;
        Some(span)
    }

    /// A block whose chunk has room for `bytes` at a multiple of `align`, and not for much more, that was freed long ago.
    fn find(&mut self, bytes: usize, align: usize) -> Option<&'static Span> {
        let mut before = None;
        let mut span = self.first;
        let mut later = self.bytes;
        for _ in 0..TRIES {
            let this = span?;
            later -= this.bytes();
            if later < HELD {
                return None;
            }
            let room = this.chunk.get().map_or(0, Chunk::room);
            if room >= bytes && room <= 2 * bytes + EXTENT_SIZE && this.start().is_multiple_of(align) {
                return self.remove(before);
            }
            before = span;
            span = this.next.get();
        }
        None
    }
}

/// Hands out a block of `pages` pages at a multiple of `align` bytes.
pub(crate) fn take(pages: usize, align: usize) -> Option<&'static Span> {
    let bytes = pages.checked_mul(PAGE_SIZE)?;
    let found = FREED.lock().find(bytes, align);
    let span = match found {
        Some(span) => span,
        None => map(pages, align)?,
    };
    if hooks::unguard(span.start(), bytes).is_err() {
        if let Some(chunk) = span.chunk.get() {
            unmap_free_chunk(span, chunk);
        }
        return None;
    }
    span.resize(span.start(), pages);
    span.set_zero(true);
    span.set_kind(Kind::Large);
    pool(Domain::Managed).lock().count_out(pages);
    Some(span)
}

/// Gives a block `pages` pages where it is. False, and it is as long as before, if its chunk has no room for them or the kernel refuses; what lay
/// in pages that it was to lose may be gone then.
pub(crate) fn resize(span: &'static Span, chunk: &'static Chunk, pages: usize) -> bool {
    let (before, after) = (span.bytes(), pages.saturating_mul(PAGE_SIZE));
    let end = span.start() + before.min(after);
    let done = match after {
        _ if after > chunk.room() => false,
        _ if after > before => hooks::unguard(end, after - before).is_ok(),
        _ if after < before => {
            let rest = before - after;
            hooks::discard(true, end, rest).is_ok() && hooks::guard(end, rest).is_ok()
        }
        _ => true,
    };
    if done {
        let mut pool = pool(Domain::Managed).lock();
        pool.count_in(span.pages());
        pool.count_out(pages);
        span.resize(span.start(), pages);
    }
    done
}

/// Takes a block back.
pub(crate) fn give_back(span: &'static Span, chunk: &'static Chunk) {
    let (start, bytes) = (span.start(), span.bytes());
    if hooks::discard(true, start, bytes).is_err() || hooks::guard(start, bytes).is_err() {
        return unmap_dedicated(span, chunk);
    }
    pool(Domain::Managed).lock().count_in(span.pages());
    let mut freed = FREED.lock();
    span.set_kind(Kind::Free);
    freed.push(span);
    let too_many = freed.bytes > KEPT || freed.blocks > KEPT_BLOCKS;
    let oldest = if too_many { freed.remove(None) } else { None };
    drop(freed);
    if let Some((oldest, chunk)) = oldest.and_then(|span| Some((span, span.chunk.get()?))) {
        unmap_free_chunk(oldest, chunk);
    }
}

/// Unmaps all free blocks.
pub(crate) fn unmap_free() {
    loop {
        let span = FREED.lock().remove(None);
        let Some((span, chunk)) = span.and_then(|span| Some((span, span.chunk.get()?))) else { return };
        unmap_free_chunk(span, chunk);
    }
}

/// Unmaps the chunk of a block that is not handed out.
fn unmap_free_chunk(span: &'static Span, chunk: &'static Chunk) {
    pool(Domain::Managed).lock().unlink_chunk(chunk);
    records::give_span(span);
    unmap_chunk(Domain::Managed, chunk);
}

/// A chunk that can be touched nowhere, with the record of a free block of `pages` pages.
fn map(pages: usize, align: usize) -> Option<&'static Span> {
    let lead = align.max(MARGIN.next_multiple_of(align));
    let room = pages.checked_mul(PAGE_SIZE)?;
    let len = room.checked_add(lead + MARGIN)?.checked_next_multiple_of(EXTENT_SIZE)?;
    let span = records::take_span()?;
    let Some(chunk) = map_chunk(Domain::Managed, len, align.max(EXTENT_SIZE), Purpose::Dedicated) else {
        records::give_span(span);
        return None;
    };
    chunk.lead.set(lead);
    chunk.tail.set(MARGIN);
    span.describe(Domain::Managed, Some(chunk), chunk.start(), pages, Kind::Free);
    pagemap::set(span.start(), span);
    pool(Domain::Managed).lock().link_chunk(chunk);
    hooks::mapped(true, chunk.base.get(), len);
    if hooks::guard(chunk.base.get(), len).is_err() {
        unmap_free_chunk(span, chunk);
        return None;
    }
    Some(span)
}

/// A chunk that can never be touched, as one span of blocks.
pub(crate) fn map_untouchable(pages: usize) -> Option<&'static Span> {
    let len = pages * PAGE_SIZE;
    debug_assert!(len.is_multiple_of(EXTENT_SIZE));
    let span = records::take_span()?;
    let Some(chunk) = map_chunk(Domain::Managed, len, EXTENT_SIZE, Purpose::Dedicated) else {
        records::give_span(span);
        return None;
    };
    let base = chunk.base.get();
    chunk.lead.set(len);
    span.describe(Domain::Managed, Some(chunk), base, pages, Kind::Blocks);
    pool(Domain::Managed).lock().link_chunk(chunk);
    hooks::mapped(true, base, len);
    if hooks::guard(base, len).is_err() {
        unmap_free_chunk(span, chunk);
        return None;
    }
    pagemap::set_all(span);
    Some(span)
}

pub(crate) fn hold() {
    FREED.hold();
}

/// # Safety
/// As [`Mutex::release`].
pub(crate) unsafe fn release(in_child: bool) {
    // SAFETY: the caller's contract.
    unsafe { FREED.release(in_child) };
}
