//! Where a process puts its control page: a file named by its process id, in a directory that it was given.
//!
//! A directory that is named `…-NUMBER` is that of a `memfold run` in the PID namespace of this number, and a process in another
//! one adds its own, `PID@NUMBER`: ids are those of a namespace, and two below the launcher's have the same.
//!
//! What it is not: who reads it; that is the `memfold` command.
//!
//! Invariants: no allocation and no libc, because a forked child's background thread makes its page itself; a page gets its
//! name only when it is whole, and is mapped only when the file system has set its blocks aside; the file is locked (flock(2)) for
//! as long as a process has it mapped, which says even in another PID namespace that it is in use.

use crate::control::{ControlPage, CONTROL_LEN};
use crate::text::Line;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt::Write;
use sys::{file, mem, thread, Errno, Result};

/// Longest path, with its zero.
const LEN: usize = 512;
/// Room that is left for a file's name.
const NAME: usize = 40;
/// How often a page is made that loses its directory meanwhile: who finds none in it may remove it at any time.
const TRIES: u32 = 3;

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

    /// Sets it. A path of 472 bytes or more is left out: the counters are then seen by nobody.
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

    /// Makes this process's control file and maps it, for ever. `None` when there is no directory for it, no access, no room in
    /// the file system or within `RLIMIT_FSIZE`: the counters are then seen by nobody, and that is all.
    ///
    /// A directory that is gone is made anew: a launcher that ends while its program goes on removes it, if no process has a page
    /// in it yet.
    pub fn make_page(&self) -> Option<&'static ControlPage> {
        let mut name = Line::new();
        self.write_name(&mut name);
        let mut unfinished = Line::new();
        let _ = write!(unfinished, "new-{}", name.as_str());
        let (path, unfinished) = (self.join(name.as_str())?, self.join(unfinished.as_str())?);
        for _ in 0..TRIES {
            match make_at(unfinished.as_c_str(), path.as_c_str()) {
                Err(Errno::ENOENT) => {
                    // SAFETY: no longer written.
                    let dir = CStr::from_bytes_until_nul(unsafe { &*self.bytes.get() }).ok()?;
                    let _ = file::make_dir(dir);
                }
                made => return made.ok(),
            }
        }
        None
    }

    /// Removes this process's control file, and the directory if it was the last in it. The page stays mapped.
    pub fn remove_page(&self) {
        let mut name = Line::new();
        self.write_name(&mut name);
        let Some(path) = self.join(name.as_str()) else { return };
        let _ = file::remove(path.as_c_str());
        // SAFETY: no longer written.
        if let Ok(dir) = CStr::from_bytes_until_nul(unsafe { &*self.bytes.get() }) {
            let _ = file::remove_dir(dir);
        }
    }

    /// What this process's file is called.
    fn write_name(&self, name: &mut Line) {
        let _ = write!(name, "{}", thread::current_pid());
        // SAFETY: no longer written.
        let dir = CStr::from_bytes_until_nul(unsafe { &*self.bytes.get() }).unwrap_or(c"");
        let Some(theirs) = dir.to_str().ok().and_then(namespace_of_dir) else { return };
        // Without /proc it cannot be told, and the launcher's is the likeliest.
        if let Some(own) = file::inode(c"/proc/self/ns/pid").ok().filter(|own| *own != theirs) {
            let _ = write!(name, "@{own}");
        }
    }
}

/// The number of the PID namespace in which the processes of a run have their ids, from the run's directory; `None` where that
/// is not told.
pub fn namespace_of_dir(dir: &str) -> Option<u64> {
    let (_, name) = dir.rsplit_once('/')?;
    let mut parts = name.strip_prefix("run-")?.splitn(3, '-');
    parts.nth(2)?.parse().ok()
}

/// Makes a control page in a new file `unfinished`, and gives that the name `path` when it is whole.
fn make_at(unfinished: &CStr, path: &CStr) -> Result<&'static ControlPage> {
    let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR | libc::O_NOFOLLOW;
    let file = file::open(unfinished, flags, 0o600)?;
    let made = file::allocate(file.raw(), 0, CONTROL_LEN as u64).and_then(|()| {
        // A file system without locks: other namespaces take the page for one that nobody uses.
        let _ = file::lock_shared(file.raw());
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length, never unmapped.
        let addr = unsafe {
            mem::mmap(mem::place(CONTROL_LEN), CONTROL_LEN, prot, libc::MAP_SHARED, file.raw(), 0)
        }?;
        // SAFETY: zeros are a control page, and the file is as long as one.
        let page = unsafe { &*(addr as *const ControlPage) };
        page.begin();
        // Under its own name only now: the process may end at any moment, and readers find whole pages only.
        match file::rename(unfinished, path) {
            Ok(()) => Ok(page),
            Err(error) => {
                // SAFETY: our own mapping, to which nothing refers any more.
                let _ = unsafe { mem::munmap(addr, CONTROL_LEN) };
                Err(error)
            }
        }
    });
    if made.is_err() {
        let _ = file::remove(unfinished);
    }
    made
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
