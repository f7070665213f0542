//! The daemon: serves the faults of many processes, compresses their cold pages and divides one budget among them.
//!
//! A process that uses the crate `client` greets it ([`wire`]) and hands over its userfaultfd and a channel ([`channel`]), the
//! memory that both map. The process's own agent moves cold pages out of the program's view, which only the process itself
//! can do, and keeps the store; the daemon compresses ([`serve`]), restores what is touched, and says how much may stay
//! resident ([`budget`]). If the daemon dies, nothing is lost with it: the store lies in the channel, which the process
//! keeps, and its agent serves the faults until there is a daemon again.
//!
//! What it is not: trusted with more than it needs, or trusting. A process that sends nonsense is left to itself; its
//! thread in the daemon is the only one that notices.

pub mod account;
mod breaker;
pub mod budget;
pub mod channel;
pub mod counters;
pub mod damon;
mod door;
pub mod governed;
mod guard;
pub mod metrics;
pub mod observe;
mod peer;
pub mod quota;
pub mod remote;
pub mod sandbox;
pub mod scrape;
pub mod serve;
pub mod server;
pub mod token;
pub mod wire;
