//! What to evict, and when: decisions only.
//!
//! What it is not: it reads no clock, makes no kernel call and owns no page. Times come in as nanoseconds
//! of any monotonic clock, so that the same code runs in the pager and in a simulator.
#![no_std]

#[cfg(feature = "replace")]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod age;
pub mod budget;
pub mod clusters;
#[cfg(feature = "replace")]
pub mod daemon;
pub mod effort;
pub mod foresight;
pub mod held;
pub mod learning;
pub mod pace;
pub mod period;
pub mod recheck;
#[cfg(feature = "replace")]
pub mod replace;
pub mod returns;
#[cfg(feature = "replace")]
pub mod spec;
pub mod stall;
pub mod touch;
pub mod utilization;
pub mod walk;
