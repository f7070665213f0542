//! How much of a file is in the page cache: `cachestat(2)` where the kernel has it (Linux 6.5), else `mincore(2)`.

use anyhow::{Context, Result};
use memfold_sys::cachestat::cachestat;
use memfold_sys::{Errno, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The pages of a file in the cache, in bytes. What `mincore` does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// In the cache.
    pub resident: u64,
    /// Of these, changed and not written back yet.
    pub dirty: Option<u64>,
    /// Of these, being written back.
    pub writeback: Option<u64>,
    /// Not in the cache any more, by the kernel's memory of what it evicted.
    pub evicted: Option<u64>,
}

impl Residency {
    /// Of the first `bytes` of `file`.
    ///
    /// # Errors
    /// When neither call answers.
    pub fn of(file: &File, bytes: u64) -> Result<Residency> {
        match cachestat(file.as_raw_fd(), 0, bytes) {
            Ok(stat) => {
                let bytes = |pages: u64| pages * PAGE_SIZE as u64;
                Ok(Residency {
                    resident: bytes(stat.cached),
                    dirty: Some(bytes(stat.dirty)),
                    writeback: Some(bytes(stat.writeback)),
                    evicted: Some(bytes(stat.evicted)),
                })
            }
            Err(Errno::ENOSYS | Errno::EPERM) => mincore(file, bytes),
            Err(error) => Err(error).context("cachestat failed"),
        }
    }
}

fn mincore(file: &File, bytes: u64) -> Result<Residency> {
    let length = bytes as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody touches.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if map == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).context("cannot map the file to ask for its pages");
    }
    let mut pages = vec![0u8; length.div_ceil(PAGE_SIZE)];
    // SAFETY: the range is the mapping's, and there is a byte for each of its pages.
    let answer = unsafe { libc::mincore(map, length, pages.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // SAFETY: the mapping is ours and nobody has a reference into it.
    unsafe { libc::munmap(map, length) };
    if answer != 0 {
        return Err(error).context("mincore failed");
    }
    let resident = pages.iter().filter(|page| **page & 1 == 1).count() as u64 * PAGE_SIZE as u64;
    Ok(Residency { resident, ..Residency::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
    use std::io::Write;

    #[test]
    fn both_calls_see_the_pages_that_are_there_and_those_that_went() {
        const SIZE: u64 = 1 << 20;
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; SIZE as usize]).unwrap();
        // Not written back yet, so nobody can drop them.
        assert_eq!(mincore(&file, SIZE).unwrap().resident, SIZE);
        assert_eq!(Residency::of(&file, SIZE).unwrap().resident, SIZE);
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        assert_eq!(mincore(&file, SIZE).unwrap().resident, 0);
        assert_eq!(Residency::of(&file, SIZE).unwrap().resident, 0);
    }
}
