//! What a tenant does: a workload on a file, in one of the ways to reach it.

use crate::workload::Workload;
use std::path::PathBuf;

memfold_experiment::named! {
    /// How a file is reached.
    pub enum Access, "way to reach a file" {
        /// Through the page cache, as programs do.
        Cached = "cached",
        /// Past it, by `O_DIRECT`.
        Direct = "direct",
        /// Through it, but its pages are dropped when the request is done (`RWF_DONTCACHE`, Linux 6.14).
        DontCache = "dontcache",
        /// Through it, with `posix_fadvise(POSIX_FADV_DONTNEED)` behind each 256 requests.
        DropBehind = "dropbehind",
        /// Through it without read-ahead (`POSIX_FADV_RANDOM`).
        NoReadAhead = "noreadahead",
        /// Through it, with write-back begun by `sync_file_range` after each 64 writes, and waited for 64 later.
        BoundedWriteback = "boundedwriteback",
    }
}

impl Access {
    /// The ways that `run` compares.
    pub const MODES: [Access; 3] = [Access::Cached, Access::Direct, Access::DontCache];

    /// Whether our own engine stands in for fio, whose 3.x in Debian cannot do it.
    pub fn by_engine(self) -> bool {
        matches!(self, Access::DontCache | Access::DropBehind)
    }
}

/// What one tenant does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The workload; its size and runtime are those of this run.
    pub workload: Workload,
    /// Its file.
    pub file: PathBuf,
    /// How the file is reached.
    pub access: Access,
    /// The file is in the cache already, and stays there when the run begins.
    pub warm: bool,
    /// Seconds at the start that do not count.
    pub ramp: u64,
    /// Bytes a second that it may move at most.
    pub rate: Option<u64>,
}
