//! Where a process puts its control page: a file named by its process id, in a directory that it was given.
//!
//! What it is not: who reads it; that is the `memfold` command.
//!
//! Invariants: no allocation and no libc, because a forked child's background thread makes its page itself; a page gets its
//! name only when it is whole.

use crate::control::{ControlPage, CONTROL_LEN};
use crate::text::Line;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt::Write;
use sys::{file, mem, thread};

/// Longest path, with its zero.
const LEN: usize = 512;
/// Room that is left for a file's name.
const NAME: usize = 32;

/// A directory in static memory; none until it is set.
pub struct ControlDir {
    bytes: UnsafeCell<[u8; LEN]>,
}

// SAFETY: written once, before others look, by the contract of `set`.
unsafe impl Sync for ControlDir {}

impl Default for ControlDir {
    fn default() -> Self {
        ControlDir::new()
    }
}

impl ControlDir {
    /// No directory.
    pub const fn new() -> ControlDir {
        ControlDir { bytes: UnsafeCell::new([0; LEN]) }
    }

    /// Sets it. A path of 480 bytes or more is left out: the counters are then seen by nobody.
    ///
    /// # Safety
    /// No other thread uses it yet, and it is set only once.
    pub unsafe fn set(&self, text: &str) {
        if text.len() < LEN - NAME {
            // SAFETY: the caller's contract.
            unsafe { (&mut *self.bytes.get())[..text.len()].copy_from_slice(text.as_bytes()) };
        }
    }

    /// The path of a file in this directory; `None` when there is no directory, or the name is too long.
    pub fn join(&self, name: &str) -> Option<FilePath> {
        // SAFETY: no longer written.
        let dir = unsafe { &*self.bytes.get() };
        let len = dir.iter().position(|&b| b == 0).filter(|&n| n > 0)?;
        let end = len + 1 + name.len();
        if end >= LEN {
            return None;
        }
        let mut path = FilePath { bytes: [0; LEN] };
        path.bytes[..len].copy_from_slice(&dir[..len]);
        path.bytes[len] = b'/';
        path.bytes[len + 1..end].copy_from_slice(name.as_bytes());
        Some(path)
    }

    /// Makes this process's control file and maps it, for ever. `None` when there is no directory for it, or no access:
    /// the counters are then seen by nobody, and that is all.
    pub fn make_page(&self) -> Option<&'static ControlPage> {
        let (mut name, mut unfinished) = (Line::new(), Line::new());
        let pid = thread::current_pid();
        let _ = (write!(name, "{pid}"), write!(unfinished, "new-{pid}"));
        let (path, unfinished) = (self.join(name.as_str())?, self.join(unfinished.as_str())?);
        let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR;
        let file = file::open(unfinished.as_c_str(), flags, 0o600).ok()?;
        file::set_len(file.raw(), CONTROL_LEN as u64).ok()?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length, never unmapped.
        let addr = unsafe { mem::mmap(0, CONTROL_LEN, prot, libc::MAP_SHARED, file.raw(), 0) }.ok()?;
        // SAFETY: zeros are a control page, and the file is as long as one.
        let page = unsafe { &*(addr as *const ControlPage) };
        page.begin();
        // Under its own name only now: the process may end at any moment, and readers find whole pages only.
        file::rename(unfinished.as_c_str(), path.as_c_str()).ok()?;
        Some(page)
    }
}

/// A zero-terminated path.
pub struct FilePath {
    bytes: [u8; LEN],
}

impl FilePath {
    /// Of a whole path; `None` when it is too long, or has a zero in it.
    pub fn of(path: &str) -> Option<FilePath> {
        let mut bytes = [0; LEN];
        bytes.get_mut(..path.len()).filter(|room| room.len() < LEN)?.copy_from_slice(path.as_bytes());
        (!path.as_bytes().contains(&0)).then_some(FilePath { bytes })
    }

    /// For a system call.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}
