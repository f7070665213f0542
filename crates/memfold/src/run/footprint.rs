//! The launcher's own memory while the program runs: it waits, and needs next to none of what starting took.
//!
//! What lies in files comes back from the page cache when it is touched again, so it is let go of: a tool that saves memory should not count as ten megabytes of it.

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use std::time::{Duration, Instant};

/// After so long what a launcher does again and again has been done once.
const SETTLED: Duration = Duration::from_secs(1);

/// When it is to be let go of.
#[derive(Debug)]
pub struct Footprint {
    at: Option<Instant>,
}

impl Footprint {
    /// A while from now.
    pub fn new() -> Footprint {
        Footprint { at: Some(Instant::now() + SETTLED) }
    }

    /// Lets go of it if it is time to.
    pub fn look(&mut self) {
        if self.at.is_some_and(|at| at <= Instant::now()) {
            self.at = None;
            // It is an improvement only.
            let maps = Process::myself().and_then(|own| own.smaps()).map(|maps| maps.0).unwrap_or_default();
            for map in maps.iter().filter(|map| comes_back(map)) {
                let (start, end) = map.address;
                // SAFETY: nothing is lost: the pages are those of the file, as nothing was ever written to them, and nothing can be.
                unsafe {
                    libc::madvise(start as *mut libc::c_void, (end - start) as usize, libc::MADV_DONTNEED)
                };
            }
        }
    }
}

/// Whether all of a mapping that is in memory is a file's, and stays so.
fn comes_back(map: &MemoryMap) -> bool {
    let size = |name| map.extension.map.get(name).copied();
    matches!(map.pathname, MMapPath::Path(_))
        && !map.perms.contains(MMPermissions::WRITE)
        && size("Anonymous") == Some(0)
        && size("Locked").unwrap_or(0) == 0
}
