//! The pager: compresses the pages that a program is not using, and brings them back when it touches them.
//!
//! What it is not: a way into the program. It manages what it is told of ([`Engine::mapped`] and its kin);
//! the preload library and the client library are who tells.
//!
//! Four kinds of threads meet in it, each with its modules:
//! - program threads, when they change mappings, and the proxy, which makes the calls that they need of the userfaultfd ([`changes`]);
//! - the fault thread, which puts absent pages back ([`fault`]);
//! - the background thread, which evicts ([`evict`], [`store`], [`codec`]) what an access source takes for
//!   cold ([`source`]), and tells why what is resident stays so ([`inventory`]).
//!
//! [`tables`] are the state they share, and [`engine`] is where all of it comes together; read [`tables::entry`] and [`tables::extent`] first: they
//! have the rules.
//! Nothing here uses `std`, allocates from the program's heap, or touches memory that can be evicted.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod activity;
pub mod base;
mod blocks;
mod changes;
mod choices;
pub mod codec;

pub mod config;
mod contention;
pub mod control;
pub mod control_file;

mod engine;
mod evict;
mod fault;
pub use fault::stamps;
pub mod file_path;
mod free_queue;
mod gate;
mod gauge;
pub mod heat;
mod inventory;
mod kernel;
pub mod lock;
mod maps;
pub mod mirror;
mod observed;
pub mod own_heap;
pub mod plan;
pub mod postmortem;
mod recording;
pub mod report;
mod requests;
mod retry;
pub mod sabotage;
pub mod samples;
pub mod share;
pub mod shared_text;
mod sleep;
mod slot;
pub mod source;
mod staging;
mod starting;
mod store;
mod sync;
mod tables;
mod text;
pub mod tier;
pub mod training;
mod turns;
pub mod why;

pub use choices::{Nonsense, TIER_DIRECTORY};
pub use engine::huge::{huge_pages_are_folded, HugeWish};
pub use engine::{Engine, Host, Phase, ReadCpu};
pub use kernel::{features_with_forks, Made};
pub use shared_text::SharedText;
pub use text::Line;
