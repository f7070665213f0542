//! What the process may have of what is limited for each process (getrlimit(2)).
//!
//! What it is not: the limits of control groups, which are in [`crate::cgroup`].

use crate::syscall;

/// The limit on this resource; `None` without one.
pub fn limit(resource: u32) -> Option<u64> {
    let mut limit = [0u64; 2];
    // SAFETY: the two words of `struct rlimit64`.
    unsafe { syscall!(prlimit64, 0, resource, 0, limit.as_mut_ptr() as usize) }.ok()?;
    (limit[0] != u64::MAX).then_some(limit[0])
}

/// How many descriptors this process may have open (`RLIMIT_NOFILE`); `None` without limit.
pub fn descriptors() -> Option<u64> {
    limit(libc::RLIMIT_NOFILE)
}
