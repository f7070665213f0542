//! Sampled blocks, in a model: there are none.

use crate::span::Span;

pub(crate) fn may_have(_: &Span, _: usize) -> bool {
    false
}

pub(crate) fn follow(_: &Span, _: usize) {}

pub(crate) fn hold() {}

pub(crate) unsafe fn let_go(_: bool) {}
