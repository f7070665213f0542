//! What every experiment of memfold keeps beside its figures: where it ran, its directory, how far it is, and the
//! error that says that a machine cannot run it.
//!
//! What it is not: an experiment. Nothing here measures.

pub mod manifest;
pub mod output;
pub mod progress;

/// Something that this machine, or this user on it, cannot do; the text says what and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// The value of the line that starts with `key`, in bytes, of a text such as `/proc/meminfo`; 0 where there is no such
/// line.
pub fn kilobytes(text: &str, key: &str) -> u64 {
    let value =
        text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0) * 1024
}
