//! The pager: compresses the pages that a program is not using, and brings them back when it touches them.
//!
//! What it is not: a way into the program. It manages what it is told of ([`Engine::mapped`] and its kin);
//! the preload library and the client library are who tells.
//!
//! Four kinds of threads meet in it, each with its modules:
//! - program threads, when they change mappings ([`mappings`], [`forking`]);
//! - the fault thread, which puts absent pages back ([`fault`], [`events`], [`follow`], [`restore`]);
//! - the proxy, which makes the calls that program threads need of the userfaultfd ([`proxy`]);
//! - the background thread, which evicts ([`background`], [`worker`], [`evict`], [`store`], [`codec`]) what an access source takes for
//!   cold ([`source`]), and tells why what is resident stays so ([`inventory`]).
//!
//! [`entry`] and [`extent`] hold the state they share and the rules by which they share it; read those first.
//! Nothing here uses `std`, allocates from the program's heap, or touches memory that can be evicted.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod activity;
mod advice;
mod background;
pub mod base;
mod bitmap;
mod blocks;
mod bounds;
pub mod codec;
pub mod config;
pub mod contention;
pub mod control;
pub mod control_file;
mod demote;
mod engine;
mod entries;
mod entry;
mod events;
mod evict;
mod extent;
mod fault;
mod follow;
mod forking;
mod gate;
mod gauge;
mod group;
pub mod heat;
mod inventory;
mod joining;
mod kernel;
mod laundry;
mod learning;
mod limit;
pub mod lock;
mod maintenance;
mod mappings;
mod maps;
pub mod mirror;
mod observed;
mod own;
mod page_daemon;
mod passlog;
mod pieces;
mod pool;
pub mod postmortem;
mod prefetch;
mod proxy;
mod recall;
mod recording;
pub mod report;
mod requests;
mod reservations;
mod restore;
mod retry;
mod room;
pub mod sabotage;
mod scan;
pub mod share;
pub mod source;
mod space;
mod staging;
pub mod store;
mod sync;
mod text;
pub mod tier;
mod turns;
mod waits;
mod wakecost;
pub mod why;
mod worker;
mod young;

pub use control::SharedText;
pub use engine::{Engine, Host, Phase};
pub use text::Line;
