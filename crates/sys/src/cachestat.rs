//! `cachestat(2)` (Linux 6.5): how much of a file is in the page cache.

use crate::call::Result;
use crate::syscall;

/// Pages of a file's range (`struct cachestat` of include/uapi/linux/mman.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// In the page cache.
    pub cached: u64,
    /// Of these, changed and not written back.
    pub dirty: u64,
    /// Of these, being written back.
    pub writeback: u64,
    /// Evicted, as far as the kernel remembers.
    pub evicted: u64,
    /// Of the evicted those that would still be there with a little more memory: their return counts as a refault.
    pub recently_evicted: u64,
}

/// Looks at `length` bytes of the file `fd` from `offset` on; a length of 0 means to its end.
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EOPNOTSUPP` for hugetlbfs, `EPERM` since Linux 6.17 for a file that the caller
/// neither owns nor may write to.
pub fn cachestat(fd: i32, offset: u64, length: u64) -> Result<CacheStat> {
    let range = [offset, length];
    let mut stat = CacheStat::default();
    // SAFETY: the range and the answer are valid for the sizes of their structures.
    unsafe { syscall!(cachestat, fd, range.as_ptr() as usize, &raw mut stat as usize, 0) }?;
    Ok(stat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{open, write_all};
    use crate::{Errno, PAGE_SIZE};

    #[test]
    fn pages_that_were_written_are_in_the_cache() {
        let file = open(c".", libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
        write_all(file.raw(), &[1; 8 * PAGE_SIZE]).unwrap();
        match cachestat(file.raw(), 0, 0) {
            Ok(stat) => assert_eq!((stat.cached, stat.evicted), (8, 0), "{stat:?}"),
            Err(error) => assert_eq!(error, Errno::ENOSYS),
        }
        let two = cachestat(file.raw(), 0, 2 * PAGE_SIZE as u64);
        assert!(two.is_err() || two.unwrap().cached == 2);
    }
}
