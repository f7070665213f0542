//! Control pages seen from outside: what a folded process says of itself, and how it is asked for things.
//!
//! What it is not: the layout, which is `pager::control`.

mod alloc;
mod inventory;
mod latency;
mod mailbox;
mod snapshot;

pub use alloc::{Alloc, AllocClass};
pub use inventory::Inventory;
pub use latency::{Latency, Percentiles};
pub use mailbox::Mailbox;
#[cfg(test)]
pub use snapshot::fixture;
pub use snapshot::{Costs, Pages, Sizes, Snapshot};
