//! Slots of checked spans, in a model: no span is checked.

use crate::bin::Block;
use crate::span::Span;

pub(crate) fn is_checked(_: &Span) -> bool {
    false
}

pub(crate) fn prepare(_: &Span, _: bool) -> bool {
    unreachable!("checks are off in a model")
}

pub(crate) fn block_at(_: &Span, _: usize) -> *mut Block {
    unreachable!("checks are off in a model")
}

pub(crate) fn open(_: &Span, _: *mut Block) {
    unreachable!("checks are off in a model")
}

pub(crate) fn open_none(_: &Span) {
    unreachable!("checks are off in a model")
}

pub(crate) fn arrive(_: &Span, _: usize) {
    unreachable!("checks are off in a model")
}

pub(crate) fn depart(_: &Span, _: usize) -> bool {
    unreachable!("checks are off in a model")
}

pub(crate) fn must_be_clean(_: &Span, _: usize) {
    unreachable!("checks are off in a model")
}

pub(crate) fn seal_end(_: usize, _: usize) {
    unreachable!("checks are off in a model")
}

pub(crate) fn must_be_sealed_end(_: usize, _: usize, _: usize) {
    unreachable!("checks are off in a model")
}

pub(crate) fn begin_anew() {}
