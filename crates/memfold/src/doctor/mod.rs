//! What this machine lets memfold do, found by trying it, and what to do about the rest.
//!
//! [`probe`] looks, [`verdict`] judges, [`remedy`] says what helps. Nothing here changes the machine.

pub mod probe;
pub mod remedy;
pub mod verdict;
