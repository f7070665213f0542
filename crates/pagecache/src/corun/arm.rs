//! The arms of the experiment, and the remedies among them.

use crate::job::Access;
use serde::{Deserialize, Serialize};

/// One way to let tenants run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// One tenant by itself, the victim being number 0.
    Alone {
        /// Its number.
        tenant: usize,
    },
    /// All in one group, with nothing done about it.
    #[default]
    Together,
    /// All, with something done about it.
    Remedy {
        /// What is done.
        remedy: Remedy,
    },
    /// The victim and a neighbour that only evicts.
    Evicting,
    /// The victim and a neighbour that evicts as fast and also writes back.
    Writing,
}

memfold_experiment::named! {
    /// Something that may help the victim, in the order of the table.
    pub enum Remedy, "remedy" {
        /// A memory cgroup for each tenant, with a limit of its own.
        Memcg = "memcg",
        /// Protection of the victim's memory (`memory.min` and `memory.low`).
        MemcgMin = "memcg-min",
        /// The neighbours' requests are throttled by the block controller.
        Io = "io",
        /// The neighbours reach their files past the cache.
        Direct = "direct",
        /// The neighbours' pages are dropped when their requests are done.
        Dontcache = "dontcache",
        /// The neighbours drop what is behind them.
        Fadvise = "fadvise",
        /// The neighbours read nothing ahead.
        Readahead = "readahead",
        /// The neighbours' writes are written back soon.
        Writeback = "writeback",
    }
}

impl Remedy {
    /// What it does, as a clause.
    pub fn meaning(self) -> &'static str {
        match self {
            Remedy::Memcg => "a memory cgroup with a limit of its own for each tenant",
            Remedy::MemcgMin => "memory.min and memory.low protect the victim's memory",
            Remedy::Io => "the block controller throttles the neighbour",
            Remedy::Direct => "the neighbour uses direct I/O",
            Remedy::Dontcache => "the neighbour uses RWF_DONTCACHE",
            Remedy::Fadvise => "the neighbour drops what is behind it (POSIX_FADV_DONTNEED)",
            Remedy::Readahead => "the neighbour reads nothing ahead (POSIX_FADV_RANDOM)",
            Remedy::Writeback => "the neighbour's writes are written back after each 64 (sync_file_range)",
        }
    }

    /// How the neighbours reach their files under it.
    pub(super) fn access(self) -> Access {
        match self {
            Remedy::Memcg | Remedy::MemcgMin | Remedy::Io => Access::Cached,
            Remedy::Direct => Access::Direct,
            Remedy::Dontcache => Access::DontCache,
            Remedy::Fadvise => Access::DropBehind,
            Remedy::Readahead => Access::NoReadAhead,
            Remedy::Writeback => Access::BoundedWriteback,
        }
    }
}

impl Arm {
    /// Its name in tables and files.
    pub fn name(self) -> String {
        match self {
            Arm::Alone { tenant: 0 } => "victim-alone".into(),
            Arm::Alone { tenant } => format!("neighbor{tenant}-alone"),
            Arm::Together => "none".into(),
            Arm::Remedy { remedy } => remedy.name().into(),
            Arm::Evicting => "evict-only".into(),
            Arm::Writing => "evict-and-write".into(),
        }
    }

    /// How an arm's tenant reaches its file, the victim being number 0.
    pub(super) fn access(self, tenant: usize) -> Access {
        match self {
            Arm::Remedy { remedy } if tenant > 0 => remedy.access(),
            _ => Access::Cached,
        }
    }
}
