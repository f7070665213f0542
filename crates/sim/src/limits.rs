//! How much a trace may hold.

use memfold_policy::replace::NO_NEXT;

/// So many different pages a trace may have.
pub const MOST_PAGES: usize = u32::MAX as usize / 2;
/// So many requests a trace may have.
pub const MOST_REQUESTS: u64 = NO_NEXT as u64;
