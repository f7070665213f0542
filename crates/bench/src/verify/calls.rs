//! System calls on memory that may be evicted: pages go from one area to another through a pipe, by `write` and `read`
//! or their vector forms with pieces of odd lengths, or on one of the other ways in [`super::syscalls`] and [`super::ring`].
//!
//! A pager that resolves faults of the program only, not of the kernel on its behalf, shows here as EFAULT.

use super::area::Area;
use super::findings::{Findings, WAYS};
use super::pieces::{cut_at, move_bytes};
use super::ring::{Hand, Ring};
use super::syscalls::{self, Roads};
use crate::content::WORDS;
use anyhow::{ensure, Result};
use memfold_stats::Rng;
use memfold_sys::PAGE_SIZE;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

/// Most pages at once: a pipe takes 64 KiB without a reader (pipe(7)).
const MOST: u64 = 15;

/// A pipe whose both ends are ours.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    roads: Roads,
    /// `None` where io_uring is not to be had.
    ring: Option<Ring>,
}

impl Pipe {
    pub fn new() -> Result<Pipe> {
        let (reader, writer) = pipe()?;
        Ok(Pipe { reader, writer, roads: Roads::new()?, ring: Ring::open()? })
    }

    /// Copies some pages of `from` to `to`, contents and model.
    pub fn transfer(&mut self, findings: &Findings, from: &Area, to: &mut Area, rng: &mut Rng) -> Result<()> {
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
            "remote" => syscalls::copy(cut_at(start, bytes, sent), cut_at(end, bytes, taken)).map(|()| true),
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
                let word = from.known_word(findings.content, source, index);
                syscalls::futex((start + index * 8) as *const u32, word as u32)?;
                findings.called[way].fetch_add(1, Relaxed);
                return Ok(());
            }
            "io_uring" => self.by_ring(start, end, bytes, (sent, taken), rng),
            "registered_buffers" => self.by_registered_buffers(start, end, bytes, rng),
            "vectors" => self.through(start, end, bytes, Some((sent, taken))).map(|()| true),
            _ => self.through(start, end, bytes, None).map(|()| true),
        }?;
        if done {
            to.became(target, states);
            findings.called[way].fetch_add(1, Relaxed);
            if rng.below(2) == 0 {
                to.check(findings, WAYS[way], target..target + count);
            }
        }
        Ok(())
    }

    /// Through the ring, cut at these places. False where there is no ring.
    fn by_ring(
        &mut self,
        start: usize,
        end: usize,
        bytes: usize,
        (sent, taken): (usize, usize),
        rng: &mut Rng,
    ) -> Result<bool> {
        let apart = rng.below(2) == 0;
        let Some(ring) = &mut self.ring else { return Ok(false) };
        // SAFETY: the source pages are readable, the target pages writable, and both ours.
        unsafe {
            ring.write(start, bytes, Hand::Cut(sent), apart)?;
            ring.read(end, bytes, Hand::Cut(taken), apart)?;
        }
        Ok(true)
    }

    /// Through the ring as registered buffers, which the pager has time to take away, were they not pinned. False where
    /// there is no ring, or too little memory may be locked.
    fn by_registered_buffers(
        &mut self,
        start: usize,
        end: usize,
        bytes: usize,
        rng: &mut Rng,
    ) -> Result<bool> {
        let (apart, pause) = (rng.below(2) == 0, Duration::from_millis(rng.below(60)));
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let [from, _] = cut_at(start, bytes, bytes);
        let [to, _] = cut_at(end, bytes, bytes);
        // SAFETY: the pages are mapped, writable and ours until this returns.
        unsafe {
            ring.registered([from, to], |ring| {
                sleep(pause);
                ring.write(start, bytes, Hand::Registered(0), apart)?;
                ring.read(end, bytes, Hand::Registered(1), apart)
            })
        }
    }

    /// Through the pipe, whole or cut at these places.
    fn through(&self, start: usize, end: usize, bytes: usize, cuts: Option<(usize, usize)>) -> Result<()> {
        move_bytes(start, bytes, cuts.map(|(sent, _)| sent), |pieces, _| {
            // SAFETY: the pieces lie in the source pages, which are readable.
            went(unsafe { libc::writev(self.writer.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) })
        })?;
        move_bytes(end, bytes, cuts.map(|(_, taken)| taken), |pieces, _| {
            // SAFETY: the pieces lie in the target pages, which are writable and ours.
            went(unsafe { libc::readv(self.reader.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) })
        })
    }
}

/// What a call of libc returned.
fn went(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
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
