//! Pinned memory for the allocator's own records.
//!
//! What it is: a bump pointer over small mappings of their own, and lists of span and chunk records that can
//! be used again. What it is not: memory that ever goes back to the kernel; a record's address stays
//! readable for ever, which is what makes lock-free searches safe.
//!
//! Invariants: nothing here lies in managed memory. The lock is the last in the order.

use crate::chunk::Chunk;
use crate::counters::COUNTERS;
use crate::lock::Mutex;
use crate::span::{Kind, Span};

/// How much is mapped at a time, bytes.
const STEP: usize = 128 << 10;

struct Store {
    next: usize,
    end: usize,
    spans: Option<&'static Span>,
    chunks: Option<&'static Chunk>,
}

static STORE: Mutex<Store> = Mutex::new(Store { next: 0, end: 0, spans: None, chunks: None });

impl Store {
    fn bump(&mut self, size: usize, align: usize) -> Option<usize> {
        let start = self.next.next_multiple_of(align);
        if self.next != 0 && start + size <= self.end {
            self.next = start + size;
            return Some(start);
        }
        let len = (size + align).next_multiple_of(STEP);
        let base = memfold_sys::mem::map_own(len, 0).ok()?;
        memfold_sys::mem::note_own(base, len);
        COUNTERS.mmap_calls.add(1);
        COUNTERS.record_bytes.add(len);
        self.next = base.next_multiple_of(align) + size;
        self.end = base + len;
        Some(self.next - size)
    }
}

/// `size` zero bytes, aligned to `align` (a power of two), that are never evicted and never freed.
pub fn pinned_bytes(size: usize, align: usize) -> Option<*mut u8> {
    STORE.lock().bump(size, align).map(|addr| addr as *mut u8)
}

/// A span record of kind [`Kind::Unused`].
pub(crate) fn take_span() -> Option<&'static Span> {
    let mut store = STORE.lock();
    if let Some(span) = store.spans {
        store.spans = span.next.get();
        return Some(span);
    }
    let record = store.bump(core::mem::size_of::<Span>(), core::mem::align_of::<Span>())? as *mut Span;
    // SAFETY: the bytes are ours alone, large enough and aligned; nothing is dropped by the write.
    unsafe {
        record.write(Span::blank());
        Some(&*record)
    }
}

/// Gives a span record back; stale pointers to it may remain.
pub(crate) fn give_span(span: &'static Span) {
    span.describe(span.domain(), None, 0, 0, Kind::Unused);
    let mut store = STORE.lock();
    span.next.set(store.spans);
    store.spans = Some(span);
}

/// A chunk record; its bits are as the last user left them.
pub(crate) fn take_chunk() -> Option<&'static Chunk> {
    let mut store = STORE.lock();
    if let Some(chunk) = store.chunks {
        store.chunks = chunk.next.get();
        return Some(chunk);
    }
    let record = store.bump(core::mem::size_of::<Chunk>(), 64)? as *mut Chunk;
    // SAFETY: the bytes are ours alone, large enough, aligned and zero, and zero bytes are a valid `Chunk`.
    Some(unsafe { &*record })
}

/// Gives a chunk record back.
pub(crate) fn give_chunk(chunk: &'static Chunk) {
    let mut store = STORE.lock();
    chunk.next.set(store.chunks);
    store.chunks = Some(chunk);
}

pub(crate) fn hold() {
    STORE.hold();
}

/// # Safety
/// As [`Mutex::release`].
pub(crate) unsafe fn release(in_child: bool) {
    // SAFETY: the caller's contract.
    unsafe { STORE.release(in_child) };
}
