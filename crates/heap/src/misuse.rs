//! Whether blocks are checked, and how a program ends that misused one.
//!
//! What it is not: the checks of blocks in size classes, which are [`crate::checked`]; of blocks of whole pages it keeps which of them
//! are gone, as nothing else does.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use memfold_arena::{settings, Knob};

/// Whether blocks are checked.
static ON: AtomicBool = AtomicBool::new(false);

/// The last freed blocks of whole pages, whose mappings are gone.
static GONE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
static NEXT_GONE: AtomicUsize = AtomicUsize::new(0);

/// What is said of the defect, before the program ends.
static REPORT: AtomicUsize = AtomicUsize::new(0);

/// Who is told of a defect before the program ends.
pub(crate) fn report_to(report: fn(what: &str, address: usize)) {
    REPORT.store(report as usize, Relaxed);
}

/// From now on blocks are checked.
pub(crate) fn turn_on() {
    ON.store(true, Release);
}

/// Whether blocks are checked.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Ends the program: it misused the block at `address`.
#[cold]
pub(crate) fn defect(what: &str, address: usize) -> ! {
    let report = REPORT.load(Relaxed);
    if report != 0 {
        // SAFETY: `report_to` stored a function of this type.
        let report: fn(&str, usize) = unsafe { core::mem::transmute(report) };
        report(what, address);
    }
    memfold_sys::thread::abort_process()
}

/// Remembers that a block of whole pages is gone.
pub(crate) fn note_gone(block: usize) {
    let place = NEXT_GONE.fetch_add(1, Relaxed) % GONE.len();
    GONE[place].store(block, Relaxed);
}

/// Forgets it, as the address is in use again.
pub(crate) fn note_back(block: usize) {
    for place in &GONE {
        let _ = place.compare_exchange(block, 0, Relaxed, Relaxed);
    }
}

/// Ends the program if a block of whole pages that is gone is freed again. Other unknown addresses are left alone: the
/// dynamic loader's first blocks come from an allocator of its own.
#[cold]
#[inline(never)]
pub(crate) fn must_not_be_gone(block: usize) {
    if block != 0 && is_on() && GONE.iter().any(|place| place.load(Relaxed) == block) {
        defect("a block was freed twice", block);
    }
}

/// Whether blocks of whole pages get guard pages.
pub(crate) fn guards() -> bool {
    is_on() && settings::is_on(Knob::Guard)
}
