//! Opening, reading and writing files without libc.

use crate::call::{Errno, Result};
use crate::syscall;
use core::ffi::CStr;

/// An open file descriptor, closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over an open descriptor.
    ///
    /// # Safety
    /// Nobody else closes it.
    pub unsafe fn from_raw(fd: i32) -> Fd {
        Fd(fd)
    }

    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Gives up ownership.
    pub fn into_raw(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: we own the descriptor.
        let _ = unsafe { syscall!(close, self.0) };
    }
}

/// Opens a file; `flags` as for `open(2)`, close-on-exec added.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Fd> {
    // SAFETY: the path is a valid string.
    unsafe {
        syscall!(openat, libc::AT_FDCWD as isize, path.as_ptr() as usize, flags | libc::O_CLOEXEC, mode)
    }
    .map(|fd| Fd(fd as i32))
}

/// Duplicates `fd` to the lowest free number at or above `least`, close-on-exec set.
pub fn dup_above(fd: i32, least: i32) -> Result<Fd> {
    // SAFETY: no memory involved.
    unsafe { syscall!(fcntl, fd, libc::F_DUPFD_CLOEXEC, least) }.map(|fd| Fd(fd as i32))
}

/// Reads once, into `buffer`.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall!(read, fd, buffer.as_mut_ptr() as usize, buffer.len()) }
}

/// Reads once at `offset`, into `buffer`.
pub fn pread(fd: i32, buffer: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall!(pread64, fd, buffer.as_mut_ptr() as usize, buffer.len(), offset) }
}

/// Writes all of `bytes`, going on after interruptions and short writes.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the slice is valid for its length.
        match unsafe { syscall!(write, fd, bytes.as_ptr() as usize, bytes.len()) } {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Gives a file another name, in place of whatever has it.
pub fn rename(from: &CStr, to: &CStr) -> Result<()> {
    let here = libc::AT_FDCWD as isize;
    // SAFETY: both paths are valid strings.
    unsafe { syscall!(renameat2, here, from.as_ptr() as usize, here, to.as_ptr() as usize, 0) }.map(drop)
}

/// Whether the file that a descriptor can write to ends at its beginning; false where that cannot be told.
pub fn is_empty(fd: i32) -> bool {
    // SAFETY: no memory involved.
    unsafe { syscall!(lseek, fd, 0, libc::SEEK_END) }.is_ok_and(|end| end == 0)
}

/// Sets a file's length.
pub fn set_len(fd: i32, len: u64) -> Result<()> {
    // SAFETY: no memory involved.
    unsafe { syscall!(ftruncate, fd, len) }.map(drop)
}

/// How many descriptors this process may have open (`RLIMIT_NOFILE`); `None` without limit.
pub fn descriptor_limit() -> Option<u64> {
    let mut limit = [0u64; 2];
    // SAFETY: the two words of `struct rlimit64`.
    unsafe { syscall!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr() as usize) }.ok()?;
    (limit[0] != u64::MAX).then_some(limit[0])
}

/// Major and minor number of the character device that `fd` is open to; `None` where it is something else.
pub fn device_number(fd: i32) -> Option<u64> {
    // SAFETY: zeros are a `struct stat`, which the kernel fills.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a whole structure.
    unsafe { syscall!(fstat, fd, &mut stat as *mut libc::stat as usize) }.ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
}
