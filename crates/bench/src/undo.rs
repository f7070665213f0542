//! What a run changes on the machine is undone however the run ends: done, failed, interrupted or in a panic.
//!
//! What it is not: proof against SIGKILL. Whoever changes something leaves a mark by which the next run finds it.
//!
//! Invariants: each thing is undone once. Whoever comes second (the end of the program, after an interruption) waits for whoever came
//! first.

use anyhow::{Context, Result};
use std::sync::{Mutex, Once, PoisonError};

type Todo = Box<dyn FnOnce() + Send>;

/// What is to be undone, by number; the latest last.
static TODO: Mutex<Vec<(u64, Todo)>> = Mutex::new(Vec::new());

/// Something that is undone when this is dropped, or when the process ends before.
#[derive(Debug)]
pub struct Undo(u64);

impl Undo {
    /// Has `undo` called at the end.
    ///
    /// # Errors
    /// The process cannot watch for interruption; `undo` was called then.
    pub fn at_end(undo: impl FnOnce() + Send + 'static) -> Result<Undo> {
        static HOOKS: Once = Once::new();
        let mut outcome = Ok(());
        HOOKS.call_once(|| outcome = install());
        let mut todo = TODO.lock().unwrap_or_else(PoisonError::into_inner);
        let number = todo.last().map_or(0, |(number, _)| number + 1);
        todo.push((number, Box::new(undo)));
        drop(todo);
        let undo = Undo(number);
        outcome.context("cannot watch for interruption")?;
        Ok(undo)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut todo = TODO.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = todo.iter().position(|(number, _)| *number == self.0) {
            // Under the lock: see the invariants.
            (todo.remove(place).1)();
        }
    }
}

fn all(todo: &mut Vec<(u64, Todo)>) {
    while let Some((_, undo)) = todo.pop() {
        undo();
    }
}

fn install() -> Result<(), ctrlc::Error> {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        earlier(info);
        // The thread that panics may itself hold the lock; then the next run puts things right.
        if let Ok(mut todo) = TODO.try_lock() {
            all(&mut todo);
        }
    }));
    ctrlc::set_handler(|| {
        all(&mut TODO.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::exit(128 + libc::SIGINT);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn what_is_to_be_undone_is_when_its_keeper_goes_and_once() {
        static DONE: AtomicU32 = AtomicU32::new(0);
        let counts = |by| Undo::at_end(move || DONE.store(DONE.load(Relaxed) + by, Relaxed)).unwrap();
        let (first, second) = (counts(1), counts(10));
        drop(first);
        assert_eq!(DONE.load(Relaxed), 1);
        drop(second);
        assert_eq!(DONE.load(Relaxed), 11);
    }
}
