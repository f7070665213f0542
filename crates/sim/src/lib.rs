//! What a replacement policy makes of a trace: the very policies of the crate `policy`, request by request, exactly.
//!
//! What it is not: the policies, and the printing of results.

pub mod run;
pub mod trace;

pub use run::{simulate, Plan, Row, Size};
pub use trace::{Trace, TraceError};
