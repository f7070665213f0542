//! Attaching to processes, one or many: which of them are meant ([`candidate`], [`rules`]), where their control pages are to be ([`place`]), what came of
//! each ([`outcome`]), and doing so for whatever comes ([`watching`]).
//!
//! What it is not: the putting of the agent into a process, which is `memfold-attach`.

pub mod candidate;
pub mod folding;
pub mod outcome;
pub mod place;
pub mod rules;
pub mod watching;
