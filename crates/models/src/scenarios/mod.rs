//! What the threads of each model do.

mod blocks;
mod pages;
mod parts;

use crate::explore::Scenario;

/// All scenarios, by what they are about.
pub const ALL: &[&[Scenario]] = &[parts::SCENARIOS, pages::SCENARIOS, blocks::SCENARIOS];
