//! The process beside a program that keeps its clusters on engines in the network: Redis, or Valkey.
//!
//! The program's pager hands it sealed clusters over a Unix socket and asks for them again ([`memfold_pager::tier::wire`]). What is not here: keys
//! that seal, pages, or any judgement of what comes back; the program opens the seal itself.
//!
//! `engines` puts clusters on engines and gets them, `nodes` knows which engines there are, `node` speaks with one. `kept` knows what is still wanted, `serve` does
//! what the programs ask for, and `ending` says when no more will.
//!
//! Invariants: a cluster is acknowledged only after as many engines have it as were asked for. Nothing is deleted while a process that may read it
//! lives: one that has a connection and owns the file, or one that has the file's mark locked, as every forked child has.

mod check;
mod config;
mod connection;
mod ending;
mod engines;
#[cfg(test)]
mod fake;
mod kept;
mod node;
mod nodes;
mod serve;
mod slots;
mod spare;

pub use config::Config;
pub use serve::serve;
