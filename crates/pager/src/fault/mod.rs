//! How pages come back: the fault thread, what it learns from touches and from reports of changes past libc, and restoring, which others do too.

pub(crate) mod beside;
pub(crate) mod children;
pub(crate) mod drops;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod foreseen;
pub(crate) mod helpers;
pub(crate) mod helping;
pub(crate) mod prefetch;
pub(crate) mod reason;
pub(crate) mod recall;
pub(crate) mod restore;
pub(crate) mod room;
mod row;
pub(crate) mod run;
pub(crate) mod service;
pub mod stamps;
pub(crate) mod steps;
pub(crate) mod waits;
