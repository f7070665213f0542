//! Blocks of no bytes, where blocks are checked: addresses that can be freed, and never read or written.
//!
//! What it is: spans of addresses that cannot be touched, cut into slots; which of them the program has is kept out of line. What it
//! is not: used where blocks are not checked; there, a request for no bytes gets a block like any other.
//!
//! Invariants: these spans belong to no heap and never go back. They are of a class that no other span has.

use crate::heap::Heap;
use crate::{misuse, slots};
use core::sync::atomic::Ordering::Relaxed;
use memfold_arena::{Mutex, Span, MOST_SLOTS};
use memfold_sys::EXTENT_PAGES;

/// The class of such spans.
const CLASS: u8 = u8::MAX;

/// Bytes from one address to the next.
pub(crate) const STEP: usize = memfold_sys::EXTENT_SIZE / MOST_SLOTS;

struct Voids {
    all: Option<&'static Span>,
    /// One that may have room.
    next: Option<&'static Span>,
}

static VOIDS: Mutex<Voids> = Mutex::new(Voids { all: None, next: None });

/// Whether a span is one of these.
#[inline]
pub(crate) fn is_void(span: &Span) -> bool {
    span.class() == CLASS
}

fn new_span() -> Option<&'static Span> {
    let span = memfold_arena::alloc_untouchable(EXTENT_PAGES)?;
    if !span.clear_slots(MOST_SLOTS) {
        return None;
    }
    span.set_blocks(STEP as u32, CLASS);
    slots::open_all(span);
    span.free_count.set(MOST_SLOTS as u32);
    // No heap's, and checked: no free of one looks like that of a block at hand.
    span.owner.store(core::ptr::without_provenance_mut(Heap::TAG), Relaxed);
    Some(span)
}

/// An address of its own; null if the kernel gives no more. Which of those there are `chance` decides.
pub(crate) fn alloc(chance: u64) -> *mut u8 {
    loop {
        if let Some(address) = VOIDS.lock().take(chance) {
            return address;
        }
        let Some(span) = new_span() else { return core::ptr::null_mut() };
        let mut voids = VOIDS.lock();
        span.next.set(voids.all);
        voids.all = Some(span);
        voids.next = Some(span);
    }
}

impl Voids {
    fn take(&mut self, chance: u64) -> Option<*mut u8> {
        let has_room = |span: &&'static Span| span.free_count.get() > 0;
        let mut found = self.next.filter(has_room);
        let mut at = self.all;
        while let (None, Some(span)) = (found, at) {
            found = Some(span).filter(has_room);
            at = span.next.get();
        }
        self.next = found;
        let span = found?;
        let slot = slots::take_open(span, chance);
        span.free_count.set(span.free_count.get() - 1);
        Some((span.start() + slot * STEP) as *mut u8)
    }
}

/// Takes an address back. The program ends if it does not have it.
pub(crate) fn free(span: &'static Span, block: usize) {
    let slot = slot_of(span, block, "an address that is not the start of a block was freed");
    let mut voids = VOIDS.lock();
    if !slots::reopen(span, slot) {
        drop(voids);
        misuse::defect("a block was freed twice", block, 0);
    }
    span.free_count.set(span.free_count.get() + 1);
    voids.next = Some(span);
}

/// How many bytes of it the program may use: none. The program ends if it does not have it.
pub(crate) fn size(span: &Span, block: usize) -> usize {
    let slot = slot_of(span, block, "an address that is not the start of a block was resized");
    if slots::is_open(span, slot) {
        misuse::defect("a block was resized that was freed before", block, 0);
    }
    0
}

fn slot_of(span: &Span, block: usize, otherwise: &str) -> usize {
    let offset = block - span.start();
    if !offset.is_multiple_of(STEP) {
        misuse::defect(otherwise, block, 0);
    }
    offset / STEP
}

/// Keeps the lock for the time around `fork`.
pub(crate) fn hold() {
    VOIDS.hold();
}

/// # Safety
/// As [`Mutex::release`].
pub(crate) unsafe fn let_go(in_child: bool) {
    // SAFETY: the caller's contract.
    unsafe { VOIDS.release(in_child) };
}
