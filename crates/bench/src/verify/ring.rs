//! Memory that may be evicted, handed to the kernel through an io_uring: to a file and back, as pieces that the kernel
//! finds by their addresses, and as registered buffers, which it pins once and knows by their frames from then on.
//!
//! What it is not: a use of io_uring for speed. One call is under way at a time.
//!
//! Invariants: nothing is under way when a method returns, and no buffer is registered; what the kernel is told of lives
//! until then. A worker of the kernel makes every call that is said to be made `apart`, so that the fault is not the
//! program's own thread's.

use super::pieces::{move_bytes, Piece};
use anyhow::{Context, Result};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{opcode, IoUring};
use std::fs::File;
use std::io::{self, Error, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::sync::Once;

/// See the module. Used by one thread.
pub(super) struct Ring {
    ring: IoUring,
    /// What is written through the ring, to be read through it again; it has no name.
    pub(super) file: File,
}

/// How memory is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hand {
    /// By its addresses, cut in two after so many bytes.
    Cut(usize),
    /// As the registered buffer of this number.
    Registered(u16),
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring, or `None` where the kernel has none or this process may not use it; standard error is told of that once.
    pub fn open() -> Result<Option<Ring>> {
        static TOLD: Once = Once::new();
        match IoUring::new(2) {
            Ok(ring) => {
                let file = tempfile::tempfile().context("a file to write to through io_uring is needed")?;
                Ok(Some(Ring { ring, file }))
            }
            Err(error) if refused(&error) => {
                TOLD.call_once(|| {
                    let _ = writeln!(io::stderr(), "memfold verify: io_uring is left out: {error}");
                });
                Ok(None)
            }
            Err(error) => Err(error).context("cannot set up an io_uring"),
        }
    }

    /// Writes `bytes` from `start` to the beginning of the file.
    ///
    /// # Safety
    /// They are readable.
    pub unsafe fn write(&mut self, start: usize, bytes: usize, hand: Hand, apart: bool) -> Result<()> {
        let file = Fd(self.file.as_raw_fd());
        let entry = |pieces: &[Piece], gone| match hand {
            Hand::Cut(_) => {
                opcode::Writev::new(file, pieces.as_ptr(), pieces.len() as u32).offset(gone).build()
            }
            Hand::Registered(index) => {
                let (base, len) = (pieces[0].iov_base.cast(), pieces[0].iov_len as u32);
                opcode::WriteFixed::new(file, base, len, index).offset(gone).build()
            }
        };
        // SAFETY: the caller's contract; the entry writes these bytes to the file.
        unsafe { self.pass(start, bytes, hand, apart, entry) }
    }

    /// Reads `bytes` from the beginning of the file to `start`.
    ///
    /// # Safety
    /// They are writable, and the caller's alone.
    pub unsafe fn read(&mut self, start: usize, bytes: usize, hand: Hand, apart: bool) -> Result<()> {
        let file = Fd(self.file.as_raw_fd());
        let entry = |pieces: &[Piece], gone| match hand {
            Hand::Cut(_) => {
                opcode::Readv::new(file, pieces.as_ptr(), pieces.len() as u32).offset(gone).build()
            }
            Hand::Registered(index) => {
                let (base, len) = (pieces[0].iov_base.cast(), pieces[0].iov_len as u32);
                opcode::ReadFixed::new(file, base, len, index).offset(gone).build()
            }
        };
        // SAFETY: the caller's contract; the entry reads from the file to these bytes.
        unsafe { self.pass(start, bytes, hand, apart, entry) }
    }

    /// Makes the calls of `entry`, which is told the pieces that are left and the place in the file, until all bytes have
    /// gone.
    ///
    /// # Safety
    /// `bytes` from `start` are valid for what the entry says, and it says nothing of other memory.
    unsafe fn pass(
        &mut self,
        start: usize,
        bytes: usize,
        hand: Hand,
        apart: bool,
        entry: impl Fn(&[Piece], u64) -> Entry,
    ) -> Result<()> {
        let cut = match hand {
            Hand::Cut(at) => Some(at),
            Hand::Registered(_) => None,
        };
        move_bytes(start, bytes, cut, |pieces, gone| {
            // SAFETY: the pieces live across the call; what they say is the caller's contract.
            unsafe { self.complete(entry(pieces, gone as u64), apart) }
        })
    }

    /// Registers the buffers, numbered from 0, for as long as `work` takes. False, without any work, where this process
    /// may not lock so much memory.
    ///
    /// # Safety
    /// They are mapped, writable, and stay so meanwhile.
    pub unsafe fn registered(
        &mut self,
        buffers: [Piece; 2],
        work: impl FnOnce(&mut Ring) -> Result<()>,
    ) -> Result<bool> {
        // SAFETY: the caller's contract; they are unregistered before this returns.
        match unsafe { self.ring.submitter().register_buffers(&buffers) } {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(false),
            result => result.context("buffers cannot be registered")?,
        }
        let done = work(self);
        self.ring.submitter().unregister_buffers().context("buffers cannot be unregistered")?;
        done.map(|()| true)
    }

    /// Has the kernel do what `entry` says, and waits for it: how many bytes went.
    ///
    /// # Safety
    /// What the entry points to is valid for that until this returns.
    unsafe fn complete(&mut self, entry: Entry, apart: bool) -> io::Result<usize> {
        let entry = if apart { entry.flags(Flags::ASYNC) } else { entry };
        // SAFETY: the caller's contract.
        unsafe { self.ring.submission().push(&entry) }.map_err(Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                // A signal ends the wait, not the call.
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(completion) = self.ring.completion().next() {
                return usize::try_from(completion.result())
                    .map_err(|_| Error::from_raw_os_error(-completion.result()));
            }
        }
    }
}

/// Whether it is the machine that has no io_uring, or does not let this process use it.
fn refused(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}
