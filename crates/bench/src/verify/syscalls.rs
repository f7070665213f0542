//! Further system calls on memory that may be evicted: messages over a socket, files past the page cache, copies by the
//! kernel between two addresses, and futex words.
//!
//! What it is not: pipes, which are in [`super::calls`]. Each call here faults in another place of the kernel: a message
//! gathers and scatters, a file opened with `O_DIRECT` pins pages while a device works on them, `process_vm_readv` walks
//! the page tables as a debugger does, and `futex` reads a word with faults forbidden and tries again.

use super::pieces::Piece;
use anyhow::{ensure, Context, Result};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;

/// What a call needs that is made once.
#[derive(Debug)]
pub(super) struct Roads {
    sockets: (UnixDatagram, UnixDatagram),
    /// A file without a name, opened for direct transfers; `None` where the file system has none.
    direct: Option<File>,
}

impl Roads {
    pub fn new() -> Result<Roads> {
        let directory = tempfile::tempdir().context("a directory for a file is needed")?;
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let direct = match options.open(directory.path().join("direct")) {
            Ok(file) => Some(file),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            Err(error) => return Err(error).context("cannot open a file for direct transfers"),
        };
        Ok(Roads { sockets: UnixDatagram::pair()?, direct })
    }

    /// Sends both pieces as one message and receives it into the others.
    pub fn message(&self, from: [Piece; 2], to: [Piece; 2]) -> Result<()> {
        let (sender, receiver) = (self.sockets.0.as_raw_fd(), self.sockets.1.as_raw_fd());
        let bytes = from.iter().map(|piece| piece.iov_len).sum::<usize>();
        // SAFETY: the pieces are readable.
        let sent = unsafe { libc::sendmsg(sender, &header(&from), 0) };
        ensure!(sent == bytes as isize, "sendmsg of {bytes} bytes: {sent}, {}", Error::last_os_error());
        // SAFETY: the pieces are writable and the caller's.
        let taken = unsafe { libc::recvmsg(receiver, &mut header(&to), 0) };
        ensure!(taken == bytes as isize, "recvmsg of {bytes} bytes: {taken}, {}", Error::last_os_error());
        Ok(())
    }

    /// Writes the first memory to a file and reads the file into the second, whole pages both, without the page cache.
    /// False where the file system has no such transfers.
    pub fn direct(&self, from: &[u8], to: &mut [u8]) -> Result<bool> {
        let Some(file) = &self.direct else { return Ok(false) };
        match file.write_all_at(from, 0) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(false),
            result => result.context("a direct write")?,
        }
        file.read_exact_at(to, 0).context("a direct read")?;
        Ok(true)
    }
}

fn header(pieces: &[Piece; 2]) -> libc::msghdr {
    // SAFETY: zeros are a header without address, pieces and control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.as_ptr().cast_mut();
    header.msg_iovlen = pieces.len();
    header
}

/// Has the kernel copy the pieces, as if this process were another one.
pub(super) fn copy(from: [Piece; 2], to: [Piece; 2]) -> Result<()> {
    let bytes = from.iter().map(|piece| piece.iov_len).sum::<usize>();
    // SAFETY: the first pieces are writable and the caller's, the others readable.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), to.as_ptr(), 2, from.as_ptr(), 2, 0) };
    ensure!(done == bytes as isize, "process_vm_readv of {bytes} bytes: {done}, {}", Error::last_os_error());
    Ok(())
}

/// Waits at a word that does not hold what is said: the kernel must read it to find that out.
pub(super) fn futex(word: *const u32, holds: u32) -> Result<()> {
    let wait = |expected: u32| {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word is readable; the timeout lives across the call.
        let result = unsafe { libc::syscall(libc::SYS_futex, word, op, expected, &at_once) };
        ensure!(result == -1, "a futex nobody wakes was woken");
        Ok(Error::last_os_error())
    };
    let (wrong, right) = (wait(!holds)?, wait(holds)?);
    ensure!(wrong.raw_os_error() == Some(libc::EAGAIN), "a futex word holds something else: {wrong}");
    ensure!(
        matches!(right.raw_os_error(), Some(libc::ETIMEDOUT | libc::EINTR)),
        "a futex word does not hold what it should: {right}"
    );
    Ok(())
}
