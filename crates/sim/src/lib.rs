//! What a replacement policy makes of a trace: the very policies of the crate `policy`, request by request, exactly.
//!
//! What it is not: the policies, and the printing of results.

pub mod column;
pub mod curve;
pub mod error;
pub mod format;
pub mod generate;
mod limits;
pub mod peer;
pub mod run;
pub mod speed;
pub mod trace;

pub use error::TraceError;
pub use run::{simulate, Plan, Row, Size};
pub use trace::Trace;
