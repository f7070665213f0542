//! The arena, in a model: spans that are handed out, taken back and handed out again under a lock.

use crate::explore::{keep, keep_zeroed};
use crate::span::{Domain, Kind, Span};
use memfold_sys::sync::uses;
use memfold_sys::PAGE_SIZE;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Every span of the execution, with its address. What the arena's map of pages says of a span does not change while it
    /// is handed out, so loom need not know of it.
    static SPANS: RefCell<Vec<(usize, &'static Span)>> = RefCell::default();
    /// The spans that are free.
    static FREE: RefCell<Vec<&'static Span>> = RefCell::default();
    /// Whether who asks is told that pages are away from memory.
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// The lock of the arena's pool.
static POOL: crate::arena_lock::Mutex<()> = crate::arena_lock::Mutex::new(());

/// There is no span, at the start of an execution.
pub(crate) fn reset() {
    SPANS.take();
    FREE.take();
    AWAY.set(false);
}

/// How many spans are handed out.
pub(crate) fn handed_out() -> usize {
    SPANS.with_borrow(Vec::len) - FREE.with_borrow(Vec::len)
}

/// As in the arena.
pub fn alloc(domain: Domain, pages: usize, _align: usize, kind: Kind) -> Option<&'static Span> {
    let guard = POOL.lock();
    let span = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        let span = keep(Span::blank());
        let memory = keep(vec![0u64; pages * PAGE_SIZE / 8]).as_ptr() as usize;
        span.resize(memory, pages);
        SPANS.with_borrow_mut(|spans| spans.push((memory, span)));
        span
    });
    drop(guard);
    span.describe(domain, None, span.start(), pages, kind);
    Some(span)
}

/// No block is long enough to be moved.
pub fn alloc_movable(domain: Domain, pages: usize) -> Option<&'static Span> {
    alloc(domain, pages, PAGE_SIZE, Kind::Large)
}

/// Guards are off.
pub fn alloc_guarded(_pages: usize, _align: usize) -> Option<&'static Span> {
    None
}

/// As in the arena; whoever frees a span of which a block is in use is found out.
pub fn free(span: &'static Span, _touched: usize) {
    for addr in (span.start()..span.end()).step_by(PAGE_SIZE / 2) {
        uses(addr + 64);
    }
    span.set_kind(Kind::Free);
    let _guard = POOL.lock();
    FREE.with_borrow_mut(|free| free.push(span));
}

/// Large blocks are not modelled.
pub fn free_large(_: &'static Span, _: impl FnOnce()) -> bool {
    false
}

/// Nobody looks at the bytes of large blocks.
pub fn clear(_: &'static Span, _: usize) {}

/// Every page, or none.
pub fn is_away(_: usize, _: usize) -> bool {
    AWAY.get()
}

/// Says which.
pub(crate) fn send_away(away: bool) {
    AWAY.set(away);
}

/// As in the arena.
pub fn lookup(addr: usize) -> Option<&'static Span> {
    let holds = |start: usize| (start..start + PAGE_SIZE).contains(&addr);
    SPANS.with_borrow(|spans| spans.iter().find(|(start, _)| holds(*start)).map(|(_, span)| *span))
}

/// As in the arena.
pub fn pinned_bytes(size: usize, align: usize) -> Option<*mut u8> {
    #[repr(C, align(64))]
    struct Bytes([u8; 8192]);
    assert!(size <= 8192 && align <= 64);
    // SAFETY: bytes may be zero.
    Some(unsafe { keep_zeroed::<Bytes>() } as *const Bytes as *mut u8)
}

/// Large blocks are not modelled.
pub fn resize(_: &'static Span, _: usize) -> bool {
    false
}

/// Nothing is cached.
pub fn trim(_: usize) -> usize {
    0
}

/// Forks are not modelled.
pub fn fork_prepare() {}

/// Forks are not modelled.
///
/// # Safety
/// None is needed.
pub unsafe fn fork_release(_: bool) {}
