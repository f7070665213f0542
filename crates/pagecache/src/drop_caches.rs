//! Emptying the page cache before a run.
//!
//! Sources: Documentation/admin-guide/sysctl/vm.rst (`drop_caches`), posix_fadvise(2).

use anyhow::{Context, Result};
use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use nix::unistd::syncfs;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::Path;

/// What was emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// The whole cache of the machine, with entries and inodes.
    Whole,
    /// The pages of the test files only: without root that is all one may do.
    TestFiles,
}

impl Dropped {
    /// As a clause for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Dropped::Whole => "the whole page cache was dropped",
            Dropped::TestFiles => {
                "only the test file's pages were dropped from the cache (posix_fadvise); as root the whole cache is"
            }
        }
    }
}

/// Writes everything back and empties the cache, at least of `files`.
///
/// # Errors
/// When a file cannot be opened or written back.
pub fn drop_caches(files: &[&Path]) -> Result<Dropped> {
    for path in files {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        syncfs(&file).with_context(|| format!("cannot write {name} back"))?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .with_context(|| format!("cannot drop {name} from the cache"))?;
    }
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Ok(()) => Ok(Dropped::Whole),
        Err(_) => Ok(Dropped::TestFiles),
    }
}
