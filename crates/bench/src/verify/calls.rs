//! System calls on memory that may be evicted: pages go from one area to another through a pipe, by `write` and `read`
//! or their vector forms with pieces of odd lengths, or on one of the other ways in [`super::roads`].
//!
//! A pager that resolves faults of the program only, not of the kernel on its behalf, shows here as EFAULT.

use super::area::Area;
use super::roads::{self, Roads};
use super::shared::Shared;
use crate::page::WORDS;
use anyhow::{ensure, Result};
use stats::Rng;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use sys::PAGE_SIZE;

/// Most pages at once: a pipe takes 64 KiB without a reader (pipe(7)).
const MOST: u64 = 15;

/// A pipe whose both ends are ours.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    roads: Roads,
}

/// A stretch of memory for a system call.
pub(super) type Piece = libc::iovec;

/// The ways on which pages are handed to the kernel and come back, as reports name them.
pub(super) const WAYS: [&str; 6] = ["pipe", "vectors", "messages", "direct", "remote", "futex"];

fn cut_at(start: usize, bytes: usize, at: usize) -> [Piece; 2] {
    let piece = |from: usize, len: usize| Piece { iov_base: (start + from) as *mut _, iov_len: len };
    [piece(0, at), piece(at, bytes - at)]
}

impl Pipe {
    pub fn new() -> Result<Pipe> {
        let (reader, writer) = pipe()?;
        Ok(Pipe { reader, writer, roads: Roads::new()? })
    }

    /// Copies some pages of `from` to `to`, contents and model.
    pub fn transfer(&self, shared: &Shared, from: &Area, to: &mut Area, rng: &mut Rng) -> Result<()> {
        let count = (1 + rng.below(MOST)).min(from.pages() as u64).min(to.pages() as u64) as usize;
        let source = rng.below((from.pages() - count + 1) as u64) as usize;
        let target = rng.below((to.pages() - count + 1) as u64) as usize;
        let Some(states) = from.states(source..source + count) else { return Ok(()) };
        let bytes = count * PAGE_SIZE;
        let cut = |rng: &mut Rng| 1 + rng.below(bytes as u64 - 1) as usize;
        let (sent, taken) = (cut(rng), cut(rng));
        let (start, end) = (from.address(source), to.address(target));
        let way = rng.below(WAYS.len() as u64) as usize;
        let done = match WAYS[way] {
            "messages" => {
                self.roads.message(cut_at(start, bytes, sent), cut_at(end, bytes, taken)).map(|()| true)
            }
            "remote" => roads::copy(cut_at(start, bytes, sent), cut_at(end, bytes, taken)).map(|()| true),
            "direct" => {
                // SAFETY: the source and the target pages are mapped, ours, and of different areas.
                let (source, target) = unsafe {
                    let source = std::slice::from_raw_parts(start as *const u8, bytes);
                    (source, std::slice::from_raw_parts_mut(end as *mut u8, bytes))
                };
                self.roads.direct(source, target)
            }
            "futex" => {
                let index = rng.below(WORDS as u64) as usize;
                let word = from.known_word(shared.content, source, index);
                roads::futex((start + index * 8) as *const u32, word as u32)?;
                shared.called[way].fetch_add(1, Relaxed);
                return Ok(());
            }
            "vectors" => self.through(start, end, bytes, Some((sent, taken))).map(|()| true),
            _ => self.through(start, end, bytes, None).map(|()| true),
        }?;
        if done {
            to.became(target, states);
            shared.called[way].fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Through the pipe, whole or cut at these places.
    fn through(&self, start: usize, end: usize, bytes: usize, cuts: Option<(usize, usize)>) -> Result<()> {
        move_bytes(start, bytes, cuts.map(|(sent, _)| sent), |pieces| {
            // SAFETY: the pieces lie in the source pages, which are readable.
            unsafe { libc::writev(self.writer.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) }
        })?;
        move_bytes(end, bytes, cuts.map(|(_, taken)| taken), |pieces| {
            // SAFETY: the pieces lie in the target pages, which are writable and ours.
            unsafe { libc::readv(self.reader.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) }
        })
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
    call: impl Fn(&[Piece]) -> isize,
) -> Result<()> {
    let mut moved = 0;
    while moved < bytes {
        let left = bytes - moved;
        let first = cut.map_or(left, |cut| cut.min(left));
        let pieces = cut_at(start + moved, left, first);
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
