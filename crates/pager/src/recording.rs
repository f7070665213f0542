//! Recording which pages are touched in each interval, for a trace (`memfold record`).
//!
//! At the end of an interval every managed page in view is set aside, whole. What is in view at the end of the next one was
//! touched in it, read or written, by whichever thread or system call; of what could not be set aside (pinned, shared with a
//! forked child) only writes are seen. Nothing is compressed.
//!
//! What it is not: the trace. The file has little-endian words of eight bytes, piece by piece: the number of an interval, how
//! many pages follow, and their numbers (address divided by 4096). `memfold record` makes a trace of it.
//!
//! Invariants: one process writes to the file, which the recorder made for it, the direct child of the recorder, and only while that lives; it is opened for each
//! interval, so that the program finds no descriptor that is not its own. A recording that cannot be written stops the pager,
//! never the program.

mod looking;

use crate::file_path::FilePath;
use crate::shared_text::SharedText;
use crate::tables::bitmap::PageSet;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::signal::quietly;
use memfold_sys::time::Nanos;
use memfold_sys::{file, thread, Errno, Result};

/// Words of a piece, its head included.
const PIECE: usize = 8192;

/// What [`Errand::last`] can be.
const NOT_YET: u32 = 0;

const ASKED: u32 = 1;

const DONE: u32 = 2;

/// What the engine is to record.
pub(crate) struct Errand {
    /// Length of an interval, ns; 0 to record nothing.
    every: AtomicU64,
    /// When the first one began, `CLOCK_MONOTONIC`.
    began: AtomicU64,
    /// The recorder's process, and its file.
    recorder: AtomicU32,
    path: SharedText<64>,
    /// The program is ending and waits for a last look.
    last: AtomicU32,
}

impl Errand {
    /// Nothing.
    pub(crate) const fn new() -> Errand {
        Errand {
            every: AtomicU64::new(0),
            began: AtomicU64::new(0),
            recorder: AtomicU32::new(0),
            path: SharedText::new(),
            last: AtomicU32::new(NOT_YET),
        }
    }

    /// Whether there is anything to record.
    pub(crate) fn is_on(&self) -> bool {
        self.every.load(Relaxed) != 0
    }

    /// The number of the interval at hand, and when it ends.
    fn interval_at(&self, now: Nanos) -> (u64, Nanos) {
        let began = Nanos(self.began.load(Relaxed));
        let every = self.every.load(Relaxed).max(1);
        let begun = now.since(began).0 / every;
        (begun, began + Nanos((begun + 1).saturating_mul(every)))
    }

    fn file_path(&self) -> Option<FilePath> {
        FilePath::of(self.path.read(&mut [0; 512]))
    }

    /// Whether the recorder still lives. Of one that was killed the file is removed: nobody reads it.
    fn has_recorder(&self) -> bool {
        let lives = thread::parent_pid() == self.recorder.load(Relaxed);
        if let Some(path) = self.file_path().filter(|_| !lives) {
            let _ = file::remove(path.as_c_str());
        }
        lives
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let path = self.file_path().ok_or(Errno::EINVAL)?;
        let (dir, name) = path.parent()?;
        let file = dir.open_own_file(name.as_c_str(), libc::O_WRONLY | libc::O_APPEND)?;
        quietly(|| file::write_all(file.raw(), bytes))
    }

    /// A forked child is not recorded.
    pub(crate) fn forget_in_child(&self) {
        self.every.store(0, Relaxed);
    }
}

/// A recording under way.
pub(crate) struct Recording {
    /// When the interval at hand ends.
    due: Nanos,
    /// By the extents' numbers: pages that were in view after the last look, because they could not be set aside.
    stayed: Vec<PageSet>,
    piece: Vec<u64>,
}

impl Recording {
    fn new(due: Nanos) -> Option<Recording> {
        // A program is not ended for lack of memory: nothing is pushed beyond this room.
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).ok()?;
        Some(Recording { due, stayed: Vec::new(), piece })
    }

    /// Until the end of the interval.
    pub(crate) fn pause(&self, now: Nanos) -> Nanos {
        self.due.since(now)
    }
}
