//! Chunks, in a model: there are none, and spans come from nowhere.

/// Never made.
pub struct Chunk;
