//! The process beside a program that keeps its clusters on engines in the network: Redis, or Valkey.
//!
//! The program's pager hands it sealed clusters over a Unix socket and asks for them again ([`memfold_pager::tier::wire`]). What is not here: keys
//! that seal, pages, or any judgement of what comes back; the program opens the seal itself.
//!
//! [`engines`] speaks with the engines, [`kept`] knows what is still wanted, [`mod@serve`] does what the programs ask for.
//!
//! Invariants: a cluster is acknowledged only after as many engines have it as were asked for. Nothing is deleted while a process that may read it
//! lives: one that has a connection and owns the file, or one that has the file's mark locked, as every forked child has.

mod connection;
mod ending;
pub mod engines;
#[cfg(test)]
mod fake;
pub mod kept;
pub mod serve;
mod slots;
mod spare;

pub use serve::serve;
