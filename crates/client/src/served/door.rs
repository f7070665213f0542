//! The way to the daemon: who listens at a path, and whether that one may have what is this process's.
//!
//! Whoever serves a process gets its userfaultfd and its pages, so a path is not believed: what counts is who listens. That is the
//! process's own user, or root, and for a process of root's nobody but root.
//!
//! Invariants: nothing is sent to anybody else, at the first connection as at each later one. No allocation: the agent connects too.

use core::fmt::Write;
use memfold_pager::control_file::FilePath;
use memfold_pager::Line;
use memfold_sys::file::{self, Fd};
use memfold_sys::socket::{self, Credentials};
use memfold_sys::{thread, Errno};

/// Why there is no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Nobody listens there, or the path is none.
    #[error("no daemon listens there ({0}); start one with `memfold daemon`")]
    Kernel(#[from] Errno),
    /// Anybody could have put a socket there.
    #[error("others may write to its directory (mode {0:o}); use one that only its owner may write to")]
    Open(u32),
    /// The directory is somebody else's.
    #[error("its directory belongs to user {0}; use one of your own or of root's")]
    Theirs(u32),
    /// Somebody else listens there.
    #[error("process {} of user {} listens there; only a daemon of your own user or of root is trusted", .0.pid, .0.uid)]
    Stranger(Credentials),
}

/// Connects to the daemon at a path, if it may be trusted.
pub fn connect(path: &[u8]) -> Result<Fd, Refused> {
    let path = core::str::from_utf8(path).map_err(|_| Errno::EINVAL)?;
    let (dir, name) = match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", path),
    };
    let dir = FilePath::of(dir).ok_or(Errno::EINVAL)?;
    // The directory itself, so that what is looked at is what is used.
    let held = file::open(dir.as_c_str(), libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let status = file::status(held.raw())?;
    if !is_trusted(status.st_uid) {
        return Err(Refused::Theirs(status.st_uid));
    }
    let others = libc::S_IWGRP | libc::S_IWOTH;
    // In a sticky one nobody but its owner can take a socket away and put another in its place.
    if status.st_mode & others != 0 && status.st_mode & libc::S_ISVTX == 0 {
        return Err(Refused::Open(status.st_mode & 0o7777));
    }
    let mut place = Line::new();
    let _ = write!(place, "/proc/thread-self/fd/{}/{name}", held.raw());
    let socket = socket::connect(place.as_str().as_bytes())?;
    let peer = socket::peer(socket.raw())?;
    if is_trusted(peer.uid) {
        Ok(socket)
    } else {
        Err(Refused::Stranger(peer))
    }
}

/// Whether that user may have what is this process's.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == thread::effective_user()
}
