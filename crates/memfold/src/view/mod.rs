//! What `memfold top` and `memfold web` show of folded programs, however it is drawn: a line for each, and of one of them what became of its
//! memory, and its address space as a picture.

pub mod heat;
pub mod job;
pub mod process;
pub mod row;

use nix::time::{clock_gettime, ClockId};
use std::time::Duration;

/// CPU time of memfold itself so far.
pub fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
