//! What a demo is to show.

use super::load::Hot;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many records.
    pub records: u64,
    /// Where the hot ones are.
    pub hot: Hot,
    /// The cold age, as text.
    pub cold_age: String,
    /// The stall budget, as text.
    pub max_stall: String,
    /// The CPU budget, as text.
    pub max_cpu: String,
}
