//! Opening, reading and writing files without libc.

use crate::call::{Errno, Result};
use crate::limits;
use crate::signal::quietly;
use crate::syscall;
use core::ffi::CStr;
use core::mem::zeroed;

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

/// Reads all of `buffer` from `offset` on, going on after interruptions and short reads; `EIO` where the file ends before.
pub fn read_all_at(fd: i32, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
    while !buffer.is_empty() {
        match pread(fd, buffer, offset) {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `bytes` from `offset` on, going on after interruptions and short writes; `EFBIG` beyond `RLIMIT_FSIZE`, without a
/// signal.
pub fn write_all_at(fd: i32, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the slice is valid for its length.
        let write = || unsafe { syscall!(pwrite64, fd, bytes.as_ptr() as usize, bytes.len(), offset) };
        match quietly(write) {
            Ok(0) => return Err(Errno(libc::ENOSPC)),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Gives the blocks of a range of a file back to the file system; it reads as zeros from then on, and the file is as long as before.
pub fn punch(fd: i32, start: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory involved.
    unsafe { syscall!(fallocate, fd, mode, start, len) }.map(drop)
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

/// Writes all of `bytes` to a file that is not ours, without a signal for the thread if that fails. What could not be written is
/// lost, and that is all.
pub fn say(fd: i32, bytes: &[u8]) {
    let _ = quietly(|| write_all(fd, bytes));
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

/// Sets a file's length; `EFBIG` beyond `RLIMIT_FSIZE`, without a signal.
pub fn set_len(fd: i32, len: u64) -> Result<()> {
    // SAFETY: no memory involved.
    quietly(|| unsafe { syscall!(ftruncate, fd, len) }.map(drop))
}

/// Has the file system set blocks aside for `len` bytes from `start` on, and lengthens the file to their end if it is shorter:
/// memory that the range is mapped to can be written from then on, and never ends the process by SIGBUS for lack of room.
/// `ENOSPC` without room, `EFBIG` beyond `RLIMIT_FSIZE`, without a signal.
pub fn allocate(fd: i32, start: u64, len: u64) -> Result<()> {
    // SAFETY: no memory involved.
    match quietly(|| unsafe { syscall!(fallocate, fd, 0, start, len) }.map(drop)) {
        // File systems that know of no such call (ramfs, NFS 3) have blocks for what was written.
        Err(Errno(libc::EOPNOTSUPP)) => fill(fd, start, len),
        other => other,
    }
}

/// Writes zeros to a range of a new file.
fn fill(fd: i32, start: u64, len: u64) -> Result<()> {
    let zeros = [0u8; 1024];
    let (mut at, end) = (start, start + len);
    while at < end {
        let part = zeros.len().min((end - at) as usize);
        // SAFETY: the array is valid for its length.
        match quietly(|| unsafe { syscall!(pwrite64, fd, zeros.as_ptr() as usize, part, at) }) {
            Ok(0) => return Err(Errno(libc::ENOSPC)),
            Ok(n) => at += n as u64,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes a file's name.
pub fn remove(path: &CStr) -> Result<()> {
    // SAFETY: the path is a valid string.
    unsafe { syscall!(unlinkat, libc::AT_FDCWD as isize, path.as_ptr() as usize, 0) }.map(drop)
}

/// Removes an empty directory.
pub fn remove_dir(path: &CStr) -> Result<()> {
    let here = libc::AT_FDCWD as isize;
    // SAFETY: the path is a valid string.
    unsafe { syscall!(unlinkat, here, path.as_ptr() as usize, libc::AT_REMOVEDIR) }.map(drop)
}

/// Locks an open file as a whole, beside others that do the same (flock(2)), without waiting: `EAGAIN` where one has it alone. The
/// lock lasts as long as the open file, which descriptors and mappings of it keep.
pub fn lock_shared(fd: i32) -> Result<()> {
    try_lock(fd, libc::LOCK_SH)
}

/// How often a lock is taken again that was given up for a moment.
const TRIES: usize = 10_000;

/// Whether nobody has the file locked by [`lock_shared`] but the open file `own`, which is another than `fd`. False where that cannot be told. For a
/// moment meanwhile nobody has.
pub fn is_alone(fd: i32, own: i32) -> bool {
    if try_lock(own, libc::LOCK_UN).is_err() {
        return false;
    }
    let alone = !is_locked(fd);
    // Somebody else may be asking the same at this moment.
    (0..TRIES).any(|_| lock_shared(own).is_ok()) && alone
}

/// Whether somebody has the file locked by [`lock_shared`], which the open file `fd` has not. True where that cannot be told.
pub fn is_locked(fd: i32) -> bool {
    try_lock(fd, libc::LOCK_EX).is_err() || try_lock(fd, libc::LOCK_UN).is_err()
}

fn try_lock(fd: i32, how: i32) -> Result<()> {
    // SAFETY: no memory involved.
    unsafe { syscall!(flock, fd, how | libc::LOCK_NB) }.map(drop)
}

/// Locks a range of an open file that can be written to, without waiting: `EAGAIN` where another open file has locked some of it. The lock
/// ends with [`unlock_range`] or with the open file (`F_OFD_SETLK`, fcntl(2)).
pub fn lock_range(fd: i32, start: u64, len: u64) -> Result<()> {
    set_lock(fd, libc::F_WRLCK as i16, start, len)
}

/// Ends a lock of [`lock_range`].
pub fn unlock_range(fd: i32, start: u64, len: u64) -> Result<()> {
    set_lock(fd, libc::F_UNLCK as i16, start, len)
}

fn set_lock(fd: i32, kind: i16, start: u64, len: u64) -> Result<()> {
    // SAFETY: zeros are a `struct flock`.
    let mut lock: libc::flock = unsafe { zeroed() };
    (lock.l_type, lock.l_whence) = (kind, libc::SEEK_SET as i16);
    (lock.l_start, lock.l_len) = (start as i64, len as i64);
    // SAFETY: a whole structure.
    unsafe { syscall!(fcntl, fd, libc::F_OFD_SETLK, &raw const lock as usize) }.map(drop)
}

/// The number of a file within its file system; of a file in `/proc/PID/ns`, the number of the namespace (namespaces(7)).
pub fn inode(path: &CStr) -> Result<u64> {
    // SAFETY: zeros are a `statx`, which the kernel fills in; the path is a valid string.
    unsafe {
        let mut found: libc::statx = zeroed();
        let (path, out) = (path.as_ptr() as usize, &raw mut found as usize);
        syscall!(statx, libc::AT_FDCWD as isize, path, 0, libc::STATX_INO, out)?;
        Ok(found.stx_ino)
    }
}

/// The same file by one of the highest numbers that are usual, out of the way of the program's own, where one is free.
pub fn out_of_the_way(fd: Fd) -> Fd {
    /// Programs of old take no higher ones (`FD_SETSIZE`).
    const MOST: u64 = 1024;
    /// So many are tried.
    const ROOM: u64 = 32;
    let least = limits::descriptors().map_or(MOST, |limit| limit.min(MOST)).saturating_sub(ROOM);
    // SAFETY: no memory involved.
    match unsafe { syscall!(fcntl, fd.raw(), libc::F_DUPFD_CLOEXEC, least) } {
        Ok(number) => Fd(number as i32),
        Err(_) => fd,
    }
}

/// Major and minor number of the character device that `fd` is open to; `None` where it is something else.
pub fn device_number(fd: i32) -> Option<u64> {
    let stat = status(fd).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
}

/// What `fstat(2)` says of an open file.
pub fn status(fd: i32) -> Result<libc::stat> {
    // SAFETY: zeros are a `struct stat`, which the kernel fills.
    let mut stat: libc::stat = unsafe { zeroed() };
    // SAFETY: a whole structure.
    unsafe { syscall!(fstat, fd, &raw mut stat as usize) }?;
    Ok(stat)
}
