//! The calling thread's stack, word by word, read by the kernel: a wrong address is an answer and no fault.
//!
//! What it is not: for other threads' stacks, which change meanwhile.

use memfold_sys::mem;

/// Bytes that are read at a time; a small part of the smallest stack that a thread may have.
const WINDOW: usize = 256;

/// A stack, with the part of it that was read last.
pub(crate) struct Stack {
    start: usize,
    words: [usize; WINDOW / 8],
    len: usize,
}

impl Stack {
    pub(crate) fn new() -> Stack {
        Stack { start: 0, words: [0; WINDOW / 8], len: 0 }
    }

    /// The word at an address, a multiple of eight; `None` if there is no memory.
    pub(crate) fn word(&mut self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(8) {
            return None;
        }
        if at < self.start || at >= self.start + self.len {
            self.len = mem::peek(at, &mut self.words).ok()?;
            self.start = at;
        }
        self.words[..self.len / 8].get((at - self.start) / 8).copied()
    }
}
