//! Where the control page of a process is put that nobody started by `memfold run`, so that `memfold stat` and `memfold ctl`
//! find it.
//!
//! Invariants: a directory that is used belongs to the user and is closed to everybody else (0700), and is no symbolic
//! link, so that no other user can put a page there or read one. A directory that was made here goes with the last process that
//! has a page in it, if that ends by `exit`; `memfold stat` clears away what others leave.

use crate::environment::variable;
use pager::control::ControlPage;
use pager::control_file::ControlDir;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory of this process's page, and of its children's.
static CONTROL_DIR: ControlDir = ControlDir::new();

/// Decides where pages go. To be called once, before another thread of memfold's exists.
pub fn settle() {
    let given = variable("MEMFOLD_CONTROL_DIR").map(PathBuf::from);
    let own = given.is_none();
    if let Some(dir) = given.or_else(make_own).and_then(|dir| dir.into_os_string().into_string().ok()) {
        // SAFETY: `start` succeeds once, and calls this once before it starts anything.
        unsafe { CONTROL_DIR.set(&dir) };
        if own {
            // SAFETY: a function of this library, which `memfold.h` forbids to unload. Without room for it the page is left.
            let _ = unsafe { libc::atexit(leave) };
        }
    }
}

/// Takes the page of a process that ends away: of a run of its own there is nobody who adds it up.
extern "C" fn leave() {
    CONTROL_DIR.remove_page();
}

/// Makes the calling process's page.
pub fn make_page() -> Option<&'static ControlPage> {
    CONTROL_DIR.make_page()
}

/// A fresh directory, named as those of `memfold run` are, by process, time and PID namespace. Nothing if none can be made: the
/// counters are then seen by nobody.
fn make_own() -> Option<PathBuf> {
    let base = candidates().into_iter().find(|base| make(base).is_ok())?;
    let namespace = sys::file::inode(c"/proc/self/ns/pid").map(|number| format!("-{number}"));
    let (pid, now) = (std::process::id(), sys::time::now().0);
    let dir = base.join(format!("run-{pid}-{now:x}{}", namespace.unwrap_or_default()));
    DirBuilder::new().mode(0o700).create(&dir).ok()?;
    Some(dir)
}

fn candidates() -> Vec<PathBuf> {
    if let Some(dir) = variable("MEMFOLD_RUNTIME_DIR") {
        return vec![dir.into()];
    }
    let session = variable("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("memfold"));
    // SAFETY: always succeeds.
    let user = unsafe { libc::getuid() };
    session.into_iter().chain([PathBuf::from(format!("/tmp/memfold-{user}"))]).collect()
}

fn make(dir: &Path) -> io::Result<()> {
    let _ = DirBuilder::new().mode(0o700).create(dir);
    let meta = fs::symlink_metadata(dir)?;
    // SAFETY: always succeeds.
    let mine = meta.is_dir() && meta.uid() == unsafe { libc::getuid() } && meta.mode() & 0o077 == 0;
    mine.then_some(()).ok_or(io::Error::from(io::ErrorKind::PermissionDenied))
}
