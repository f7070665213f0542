//! A path in an array, for code that allocates nothing.

use core::ffi::CStr;
use core::fmt;
use memfold_sys::dir::Dir;
use memfold_sys::{Errno, Result};

/// A zero-terminated path.
#[derive(Clone, Copy)]
pub struct FilePath {
    bytes: [u8; FilePath::ROOM],
}

impl FilePath {
    /// Longest path, with its zero, bytes.
    pub const ROOM: usize = 512;

    /// No path.
    pub const fn empty() -> FilePath {
        FilePath { bytes: [0; FilePath::ROOM] }
    }

    /// Of a whole path; `None` when it is too long, or has a zero in it.
    pub fn of(path: &str) -> Option<FilePath> {
        let mut bytes = [0; FilePath::ROOM];
        bytes
            .get_mut(..path.len())
            .filter(|room| room.len() < FilePath::ROOM)?
            .copy_from_slice(path.as_bytes());
        (!path.as_bytes().contains(&0)).then_some(FilePath { bytes })
    }

    /// Of something in a directory; `None` as for [`FilePath::of`].
    pub fn joined(dir: &str, name: &str) -> Option<FilePath> {
        let mut path = FilePath::of(dir)?;
        let end = dir.len() + 1 + name.len();
        if end >= FilePath::ROOM || name.as_bytes().contains(&0) {
            return None;
        }
        path.bytes[dir.len()] = b'/';
        path.bytes[dir.len() + 1..end].copy_from_slice(name.as_bytes());
        Some(path)
    }

    /// For a system call.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        self.as_c_str().to_str().unwrap_or("")
    }

    /// The directory that it is in, held open, and its name in that.
    pub fn parent(&self) -> Result<(Dir, FilePath)> {
        let path = match self.as_str().trim_end_matches('/') {
            "" if !self.as_str().is_empty() => "/.",
            path => path,
        };
        let (dir, name) = match path.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some(parts) => parts,
            None => (".", path),
        };
        let dir = FilePath::of(dir).ok_or(Errno::EINVAL)?;
        Ok((Dir::open(dir.as_c_str())?, FilePath::of(name).ok_or(Errno::EINVAL)?))
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
