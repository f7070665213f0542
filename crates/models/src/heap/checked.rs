//! Checks of blocks, in a model: they are off.

use crate::heap::{Block, Heap};
use crate::span::Span;

pub(crate) fn is_on() -> bool {
    false
}

pub(crate) fn is_checked(_: &Span) -> bool {
    false
}

pub(crate) fn guards() -> bool {
    false
}

pub(crate) fn defect(what: &str, address: usize) -> ! {
    panic!("{what}: {address:#x}")
}

pub(crate) fn alloc(_: &'static Heap, _: usize) -> (*mut u8, bool) {
    unreachable!("checks are off in a model")
}

pub(crate) unsafe fn free(_: &'static Span, _: *mut Block) {
    unreachable!("checks are off in a model")
}

pub(crate) fn must_be_live(_: &Span, _: usize) {}

pub(crate) fn note_gone(_: usize) {}

pub(crate) fn note_back(_: usize) {}

pub(crate) fn must_not_be_gone(_: usize) {}
