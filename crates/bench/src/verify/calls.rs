//! System calls on memory that may be evicted: pages go through a pipe from one area to another, by `write` and `read`
//! or their vector forms with pieces of odd lengths.
//!
//! A pager that resolves faults of the program only, not of the kernel on its behalf, shows here as EFAULT.

use super::area::Area;
use anyhow::{ensure, Result};
use stats::Rng;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use sys::PAGE_SIZE;

/// Most pages at once: a pipe takes 64 KiB without a reader (pipe(7)).
const MOST: u64 = 15;

/// A pipe whose both ends are ours.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    pub fn new() -> Result<Pipe> {
        let (reader, writer) = pipe()?;
        Ok(Pipe { reader, writer })
    }

    /// Copies some pages of `from` to `to`, contents and model.
    pub fn transfer(&self, from: &Area, to: &mut Area, rng: &mut Rng) -> Result<()> {
        let count = (1 + rng.below(MOST)).min(from.pages() as u64).min(to.pages() as u64) as usize;
        let source = rng.below((from.pages() - count + 1) as u64) as usize;
        let target = rng.below((to.pages() - count + 1) as u64) as usize;
        let Some(states) = from.states(source..source + count) else { return Ok(()) };
        let bytes = count * PAGE_SIZE;
        let vector = rng.below(2) == 0;
        let cut = |rng: &mut Rng| 1 + rng.below(bytes as u64 - 1) as usize;
        let sent = cut(rng);
        move_bytes(from.address(source), bytes, vector.then_some(sent), |pieces| {
            // SAFETY: the pieces lie in the source pages, which are readable.
            unsafe { libc::writev(self.writer.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) }
        })?;
        let taken = cut(rng);
        move_bytes(to.address(target), bytes, vector.then_some(taken), |pieces| {
            // SAFETY: the pieces lie in the target pages, which are writable and ours.
            unsafe { libc::readv(self.reader.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) }
        })?;
        to.became(target, states);
        Ok(())
    }
}

/// The reading and the writing end of a pipe, closed on exec.
pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for both descriptors.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    ensure!(result == 0, "cannot make a pipe: {}", Error::last_os_error());
    // SAFETY: both are open and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Has `call` move `bytes` from or to `start`, in two pieces cut at `cut` or in one, until all have gone.
fn move_bytes(
    start: usize,
    bytes: usize,
    cut: Option<usize>,
    call: impl Fn(&[libc::iovec]) -> isize,
) -> Result<()> {
    let mut moved = 0;
    while moved < bytes {
        let left = bytes - moved;
        let first = cut.map_or(left, |cut| cut.min(left));
        let piece = |at: usize, len: usize| libc::iovec { iov_base: (start + at) as *mut _, iov_len: len };
        let pieces = [piece(moved, first), piece(moved + first, left - first)];
        let used = if first == left { &pieces[..1] } else { &pieces[..] };
        match call(used) {
            n if n > 0 => moved += n as usize,
            0 => anyhow::bail!("the pipe ended early"),
            _ => {
                let error = Error::last_os_error();
                ensure!(error.kind() == io::ErrorKind::Interrupted, "a system call on {left} bytes: {error}");
            }
        }
    }
    Ok(())
}
