//! The directory of a run, held open, so that what was looked at is what is read and written.
//!
//! Invariants: nothing is reached through a link, and opening waits for nobody; of a file that is opened the owner is that of the
//! directory.

use memfold_pager::file_path::FilePath;
use memfold_sys::dir::{Dir, Fault};
use memfold_sys::file::Fd;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{fstatfs, OVERLAYFS_SUPER_MAGIC};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A directory.
#[derive(Debug)]
pub struct Directory {
    dir: Dir,
    path: PathBuf,
    status: libc::stat,
}

impl Directory {
    /// Holds the directory at a path, which is no link.
    ///
    /// # Errors
    /// There is none.
    pub fn hold(path: &Path) -> io::Result<Directory> {
        let (parent, name) = parent(path)?;
        Directory::of(parent.enter(name.as_c_str()).map_err(error)?, path.to_owned())
    }

    /// Takes over one that is held, and that was at `path`.
    ///
    /// # Errors
    /// The kernel tells nothing of it.
    pub fn of(dir: Dir, path: PathBuf) -> io::Result<Directory> {
        let status = dir.status().map_err(error)?;
        Ok(Directory { dir, path, status })
    }

    /// Holds one in this.
    ///
    /// # Errors
    /// There is none.
    pub fn enter(&self, name: &str) -> io::Result<Directory> {
        Directory::of(self.dir.enter(&text(name)?).map_err(error)?, self.path.join(name))
    }

    /// Whether nobody but its owner and root can change it, or lead its path elsewhere.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<(), Fault> {
        self.dir.check(self.owner())
    }

    /// Where it was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn owner(&self) -> u32 {
        self.status.st_uid
    }

    /// What it is known by, whatever its path.
    pub fn identity(&self) -> (u64, u64) {
        (self.status.st_dev, self.status.st_ino)
    }

    /// The names of what is in it; none if it cannot be read.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let _ = self.dir.for_each_name(|name| {
            names.extend(name.to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned));
            false
        });
        names
    }

    /// Opens a regular file of the owner's; `flags` as `O_RDONLY` and its kin.
    ///
    /// # Errors
    /// It is missing, something else or somebody else's, or may not be opened.
    pub fn open(&self, name: &str, flags: i32) -> io::Result<File> {
        let file = self.dir.open_file(&text(name)?, flags).map_err(error)?;
        match memfold_sys::file::status(file.raw()).map_err(error)?.st_uid {
            owner if owner == self.owner() => Ok(to_file(file)),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Puts a file with these bytes in place of whatever has the name: who opens it finds all of them, or what was there before.
    ///
    /// # Errors
    /// It cannot be made or written.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (name, unfinished) = (text(name)?, text(&format!("new-{name}"))?);
        // Of somebody who was killed here.
        let _ = self.dir.remove(&unfinished);
        let mut file = to_file(self.dir.create(&unfinished, libc::O_WRONLY).map_err(error)?);
        let written = file.write_all(bytes).and_then(|()| self.dir.rename(&unfinished, &name).map_err(error));
        if written.is_err() {
            let _ = self.dir.remove(&unfinished);
        }
        written
    }

    /// Makes an empty file of the directory's owner, which that one's processes can write to; open to read.
    ///
    /// # Errors
    /// Something has the name, or it cannot be made.
    pub fn make(&self, name: &str) -> io::Result<File> {
        let file = to_file(self.dir.create(&text(name)?, libc::O_RDWR).map_err(error)?);
        // Root may make it among another user's.
        if self.owner() != nix::unistd::geteuid().as_raw() {
            std::os::unix::fs::fchown(&file, Some(self.owner()), None).inspect_err(|_| {
                self.remove(name);
            })?;
        }
        Ok(file)
    }

    /// Removes a file's name; whether it could.
    pub fn remove(&self, name: &str) -> bool {
        text(name).is_ok_and(|name| self.dir.remove(&name).is_ok())
    }

    /// Marks the directory as one that is in use, for as long as what is returned is kept; waits for who is about to remove it.
    /// `None` where the file system has no locks.
    pub fn lock_shared(&self) -> Option<Flock<File>> {
        Flock::lock(self.readable()?, FlockArg::LockShared).ok()
    }

    /// Keeps others from marking it, for as long as what is returned is kept.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if it is in use; others where the file system has no locks.
    pub fn lock_alone(&self) -> Result<Flock<File>, nix::errno::Errno> {
        let file = self.readable().ok_or(nix::errno::Errno::EIO)?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)
    }

    /// Whether nobody has removed it.
    pub fn is_there(&self) -> bool {
        memfold_sys::file::status(self.dir.raw()).is_ok_and(|status| status.st_nlink > 0)
    }

    /// Whether some process keeps it marked; `None` where the file system does not tell.
    pub fn is_locked(&self) -> Option<bool> {
        is_locked(self.readable()?)
    }

    fn readable(&self) -> Option<File> {
        File::open(format!("/proc/self/fd/{}", self.dir.raw())).ok()
    }
}

/// Opens the regular file at a path, which is no link, without waiting for anybody.
///
/// # Errors
/// It is missing or something else, or may not be opened.
pub fn open_file(path: &Path, flags: i32) -> io::Result<File> {
    let (parent, name) = parent(path)?;
    parent.open_file(name.as_c_str(), flags).map(to_file).map_err(error)
}

/// Opens the file that a user named for something to be written to, or makes it, as a shell does for `>`; in a sticky directory where
/// others may write, not what is theirs.
///
/// # Errors
/// It cannot be written, or is another user's where that one could lead us anywhere.
pub fn open_named(path: &Path) -> io::Result<File> {
    open_or_make(path).map(|(file, _)| file)
}

/// The same, and nothing is in it any more, if it is a file.
///
/// # Errors
/// As for [`open_named`].
pub fn open_emptied(path: &Path) -> io::Result<File> {
    let file = open_named(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// The same as [`open_named`], and whether this call made the file.
///
/// # Errors
/// As for [`open_named`].
pub fn open_or_make(path: &Path) -> io::Result<(File, bool)> {
    let Some(name) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")) else {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Dir::open(&CString::new(dir.as_os_str().as_bytes())?).map_err(error)?;
    let name = CString::new(name.as_bytes())?;
    let opened = dir.open_named(&name, libc::O_WRONLY | libc::O_NOCTTY, 0o666);
    opened.map(|(fd, made)| (to_file(fd), made)).map_err(|error| match error.0 {
        libc::EACCES if dir.status().is_ok_and(|status| status.st_mode & libc::S_ISVTX != 0) => {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is another user's, in a directory where others may write",
            )
        }
        _ => self::error(error),
    })
}

/// Whether some process has the file mapped, which it locked before. `None` where the file system does not tell: on an overlay, as containers
/// have, the mapping is of the file below, and the lock goes with the descriptor.
pub fn is_mapped(file: File) -> Option<bool> {
    let on_overlay = fstatfs(&file).is_ok_and(|system| system.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
    is_locked(file).filter(|is_locked| *is_locked || !on_overlay)
}

/// Whether some process has the file locked, by a descriptor that it has open. `None` where the file system does not tell.
pub fn is_locked(file: File) -> Option<bool> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Some(false),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Some(true),
        Err(_) => None,
    }
}

fn parent(path: &Path) -> io::Result<(Dir, FilePath)> {
    let path = path.to_str().and_then(FilePath::of).ok_or(io::ErrorKind::InvalidInput)?;
    path.parent().map_err(error)
}

fn text(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(Into::into)
}

fn error(error: memfold_sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

fn to_file(fd: Fd) -> File {
    // SAFETY: nobody else closes it.
    unsafe { File::from_raw_fd(fd.into_raw()) }
}
