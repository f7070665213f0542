//! Misuse of blocks, in a model: it is not looked for, and what is found all the same ends the scenario.

pub(crate) fn is_on() -> bool {
    false
}

pub(crate) fn guards() -> bool {
    false
}

pub(crate) fn defect(what: &str, address: usize, _: usize) -> ! {
    panic!("{what}: {address:#x}")
}

pub(crate) fn foreign(what: &str, address: usize) {
    assert_eq!(address, 0, "{what}");
}
