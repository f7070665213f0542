//! The skeleton of an experiment, whatever is measured: its arms in turns, its raw runs, where it ran, and its directory.
//!
//! What it is: names of arms and of what they are tried on ([`named!`]), the order of the runs and the word on how far they are
//! ([`course`]), figures over the runs of an arm ([`runs`]), the manifest ([`manifest`]), the directory of results with its tables,
//! plots and page ([`output`]), figures as text ([`text`]), and the error that says that a machine cannot run it.
//!
//! What it is not: an experiment. Nothing here measures.
//!
//! Invariants: the arms of a repeat run one after the other, and another one begins in the next; ratios are of runs of the same repeat.

pub mod course;
pub mod manifest;
mod names;
pub mod output;
pub mod runs;
pub mod text;

#[doc(hidden)]
pub use serde;

/// Something that this machine, or this user on it, cannot do; the text says what and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Whether no item is there twice.
pub fn all_different<T: PartialEq>(items: &[T]) -> bool {
    items.iter().enumerate().all(|(place, item)| !items[..place].contains(item))
}
