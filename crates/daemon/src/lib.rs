//! The daemon: one budget for many processes, which fold themselves.
//!
//! Each of them has the engine of the crate `pager` in it, brought by `memfold run --daemon` or by the crate `client`. The daemon looks
//! once a second at what they keep ([`governed`]), divides a budget among them ([`budget`]), and tells whoever may know what it has seen
//! ([`metrics`]). It has nothing of theirs in hand: killed, it takes nothing with it. Who observes processes from outside, for a launcher as
//! for a daemon, is here too ([`observe`]).
//!
//! What it is not: a pager. No page, no descriptor and no fault of another process ever comes to it.

pub mod budget;
pub mod counters;
pub mod damon;
pub mod governed;
pub mod metrics;
pub mod observe;
pub mod remote;
pub mod sandbox;
pub mod scrape;
pub mod server;
pub mod tier;
pub mod token;
