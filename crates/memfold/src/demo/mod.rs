//! A real redis-server, plain and folded, side by side on one machine: what the demo shows.
//!
//! [`memfold_bench::redis`] makes the data and speaks to a server, [`server`] starts and ends one, [`load`] keeps it busy, [`script`] is
//! the order of things, and [`report`] what came of them.
//!
//! Invariants: both servers get the same data, the same requests and the same slices of time, taken in
//! turns; no figure is printed unless every value was read back; nothing is left behind, also after Ctrl-C.

pub mod load;
pub mod plan;
pub mod report;
pub mod script;
pub mod server;
