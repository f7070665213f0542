//! Misuse of blocks, in a model: it is not looked for, and what is found all the same ends the scenario.

pub(crate) fn is_on() -> bool {
    false
}

pub(crate) fn guards() -> bool {
    false
}

pub(crate) fn defect(what: &str, address: usize) -> ! {
    panic!("{what}: {address:#x}")
}

pub(crate) fn note_gone(_: usize) {}

pub(crate) fn note_back(_: usize) {}

pub(crate) fn must_not_be_gone(_: usize) {}
