//! Settings of the arena, in a model: no span is kept for a thread's next blocks, so that each changes hands at once.

/// Those that the included files ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knob {
    /// As in the arena.
    Arena,
    /// As in the arena.
    Keep64K,
    /// As in the arena.
    Keep128K,
    /// As in the arena.
    Keep2M,
    /// As in the arena.
    Quarantine,
}

/// Off.
pub fn is_on(_: Knob) -> bool {
    false
}

/// None.
pub fn get(_: Knob) -> u64 {
    0
}
