//! Whether blocks are checked, and how a program ends that misused one.
//!
//! What it is not: the checks themselves, which are [`crate::checked`]'s and [`crate::slots`]'.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use memfold_arena::{settings, Knob};

/// Whether blocks are checked.
static ON: AtomicBool = AtomicBool::new(false);

/// Says what a program did, at which address, and how long the slots of that block's class are, bytes; 0 where there is no such class.
pub type Report = fn(what: &str, address: usize, slot: usize);

/// What is said of the defect, before the program ends.
static REPORT: AtomicUsize = AtomicUsize::new(0);

/// Who is told of a defect before the program ends.
pub(crate) fn report_to(report: Report) {
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

/// Ends the program: it misused the block at `address`, whose class has slots of `slot` bytes (0: none).
#[cold]
#[inline(never)]
pub(crate) fn defect(what: &str, address: usize, slot: usize) -> ! {
    let report = REPORT.load(Relaxed);
    if report != 0 {
        // SAFETY: `report_to` stored a function of this type.
        let report: Report = unsafe { core::mem::transmute(report) };
        report(what, address, slot);
    }
    memfold_sys::thread::abort_process()
}

/// Ends the program, where blocks are checked, as what it did was done to an address that is no block; null is left alone.
#[cold]
#[inline(never)]
pub(crate) fn foreign(what: &str, address: usize) {
    if address != 0 && is_on() {
        defect(what, address, 0);
    }
}

/// Whether blocks of whole pages get guard pages.
pub(crate) fn guards() -> bool {
    is_on() && settings::is_on(Knob::Guard)
}
