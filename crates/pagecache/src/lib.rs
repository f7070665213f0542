//! Who gets the page cache, at whose cost, and what helps: a benchmark of fairness over the real fio.
//!
//! What it is: eight workloads, each through the cache and past it ([`run`]); tenants side by side in memory cgroups,
//! with and without remedies ([`corun`]); and what both leave behind made readable ([`analyze`]).
//!
//! What it is not: a disk benchmark of its own. fio measures; a small engine ([`engine`]) stands in only for what
//! Debian's fio cannot do.
//!
//! Invariants: nothing runs before everything that can be checked was checked. What a run makes it also removes,
//! however it ends: what a killed run left behind goes at the next start. Test files stay for the next run, until
//! [`clean`]. No system-wide setting is changed.

pub mod analyze;
pub mod cgroup;
pub mod child;
pub mod clean;
pub mod corun;
pub mod diskstats;
pub mod drop_caches;
pub mod engine;
pub mod fairness;
pub mod files;
pub mod fio;
pub mod folder;
pub mod ini;
pub mod iostat;
pub mod job;
pub mod outcome;
pub mod place;
pub mod residency;
pub mod run;
pub mod stop;
pub mod tenant;
pub mod ticker;
pub mod workload;

pub use memfold_experiment::Unsupported;
pub use stop::{Interrupted, Stop};

/// A request that cannot be carried out as it stands; the text names the value and the remedy. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);
