//! Threads of a model, as the included files see them.

pub use linux::thread::abort_process;
use std::cell::Cell;

loom::thread_local! {
    static NUMBER: Cell<u32> = Cell::new(0);
}

/// Waiting for another thread: lets it run.
#[derive(Debug, Default)]
pub struct Backoff;

impl Backoff {
    /// As in `sys`.
    pub const fn new() -> Backoff {
        Backoff
    }

    /// Lets others run.
    pub fn wait(&mut self) {
        loom::thread::yield_now();
    }
}

/// The number that [`crate::explore::spawn`] gave the calling thread; 1 for the first.
pub fn current_tid() -> u32 {
    NUMBER.with(Cell::get).max(1)
}

/// What tells threads apart.
pub fn pointer() -> usize {
    current_tid() as usize
}

/// In a model nothing is forbidden.
pub fn current_tid_if_free() -> u32 {
    current_tid()
}

pub(crate) fn set_number(number: u32) {
    NUMBER.with(|cell| cell.set(number));
}
