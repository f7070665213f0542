//! Directories that are held open: what was looked at is what is used, wherever its path leads meanwhile.
//!
//! What it is not: a choice of directories.
//!
//! Invariants: nothing follows a link at the end of a name. A directory without [`Fault`] can be changed by nobody but its owner and
//! root, nor can what its path leads to: whoever may swap a directory above is one of those, or in a group that they let write there.

use crate::call::{Errno, Result};
use crate::file::{self, Fd};
use crate::syscall;
use core::ffi::CStr;

/// A directory.
#[derive(Debug)]
pub struct Dir(Fd);

/// Why a directory is not to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It cannot be made or opened.
    Kernel(Errno),
    /// Something else has its name, a link for instance.
    NotDirectory,
    /// It, or the directory so many levels above, belongs to this user.
    Theirs {
        /// The user.
        uid: u32,
        /// 0 for the directory itself.
        up: usize,
    },
    /// It, or the directory so many levels above, is open to others, with this mode.
    Open {
        /// The mode's last four digits.
        mode: u32,
        /// 0 for the directory itself.
        up: usize,
    },
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Fault {
        match error {
            Errno(libc::ENOTDIR | libc::ELOOP) => Fault::NotDirectory,
            error => Fault::Kernel(error),
        }
    }
}

impl Dir {
    /// Opens the directory at a path, or behind the link there.
    pub fn open(path: &CStr) -> Result<Dir> {
        file::open(path, libc::O_PATH | libc::O_DIRECTORY, 0).map(Dir)
    }

    /// Opens one in this; `ENOTDIR` for anything else, a link too.
    pub fn enter(&self, name: &CStr) -> Result<Dir> {
        self.open_at(name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0).map(Dir)
    }

    /// Makes one in this that only its owner may enter; `EEXIST` where anything has the name.
    pub fn make(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name is a valid string.
        unsafe { syscall!(mkdirat, self.raw(), name.as_ptr() as usize, 0o700) }.map(drop)
    }

    /// Makes a new file that only its owner may open; `EEXIST` where anything has the name.
    pub fn create(&self, name: &CStr, flags: i32) -> Result<Fd> {
        self.open_at(name, flags | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, 0o600)
    }

    /// Opens a file that is there, without waiting for anybody; `EINVAL` for a pipe, a device and whatever else is no regular file.
    pub fn open_file(&self, name: &CStr, flags: i32) -> Result<Fd> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = self.open_at(name, flags, 0)?;
        match file::status(fd.raw())?.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(fd),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The same of a file of the effective user's; `EPERM` for another's.
    pub fn open_own_file(&self, name: &CStr, flags: i32) -> Result<Fd> {
        let fd = self.open_file(name, flags)?;
        match file::status(fd.raw())?.st_uid == crate::thread::effective_user() {
            true => Ok(fd),
            false => Err(Errno::EPERM),
        }
    }

    /// Opens a file that a user named, or makes it, as a shell does for `>`, but for what the kernel's `fs.protected_symlinks`, `_regular`
    /// and `_fifos` forbid (proc_sys_fs(5)), whatever they are set to: in a sticky directory where others may write, `EACCES` for what
    /// belongs neither to the effective user nor to the directory's owner. A link that is neither is not followed either. Also whether this call
    /// made it.
    pub fn open_named(&self, name: &CStr, flags: i32, mode: u32) -> Result<(Fd, bool)> {
        match self.open_at(name, flags | libc::O_CREAT | libc::O_EXCL, mode) {
            Err(Errno(libc::EEXIST)) => {}
            made => return made.map(|fd| (fd, true)),
        }
        let (place, there) =
            (self.status()?, file::status(self.open_at(name, libc::O_PATH | libc::O_NOFOLLOW, 0)?.raw())?);
        let shared =
            place.st_mode & libc::S_ISVTX != 0 && place.st_mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
        if shared && there.st_uid != crate::thread::effective_user() && there.st_uid != place.st_uid {
            return Err(Errno(libc::EACCES));
        }
        // Nobody else can have swapped it for a link meanwhile where that matters.
        if there.st_mode & libc::S_IFMT != libc::S_IFLNK {
            return self.open_at(name, flags | libc::O_NOFOLLOW, mode).map(|fd| (fd, false));
        }
        match self.open_at(name, flags, mode) {
            // What it leads to is made.
            Err(Errno(libc::ENOENT)) => self.open_at(name, flags | libc::O_CREAT, mode).map(|fd| (fd, true)),
            opened => opened.map(|fd| (fd, false)),
        }
    }

    fn open_at(&self, name: &CStr, flags: i32, mode: u32) -> Result<Fd> {
        // SAFETY: the name is a valid string, and the kernel just made the descriptor for us.
        unsafe {
            syscall!(openat, self.raw(), name.as_ptr() as usize, flags | libc::O_CLOEXEC, mode)
                .map(|fd| Fd::from_raw(fd as i32))
        }
    }

    /// Gives a file in it another name, in place of whatever has that.
    pub fn rename(&self, from: &CStr, to: &CStr) -> Result<()> {
        let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
        // SAFETY: both names are valid strings.
        unsafe { syscall!(renameat2, self.raw(), from, self.raw(), to, 0) }.map(drop)
    }

    /// Removes a file's name.
    pub fn remove(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name is a valid string.
        unsafe { syscall!(unlinkat, self.raw(), name.as_ptr() as usize, 0) }.map(drop)
    }

    /// Removes an empty directory in it.
    pub fn remove_dir(&self, name: &CStr) -> Result<()> {
        // SAFETY: the name is a valid string.
        unsafe { syscall!(unlinkat, self.raw(), name.as_ptr() as usize, libc::AT_REMOVEDIR) }.map(drop)
    }

    /// Calls `each` with the name of every entry, `.` and `..` included, until it says that it has seen enough.
    pub fn for_each_name(&self, each: impl FnMut(&CStr) -> bool) -> Result<()> {
        for_each_name(&self.open_at(c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?, each)
    }

    /// What `fstat(2)` says of it.
    pub fn status(&self) -> Result<libc::stat> {
        file::status(self.raw())
    }

    /// The descriptor, which can only be used to reach what is in the directory (`O_PATH`, open(2)).
    pub fn raw(&self) -> i32 {
        self.0.raw()
    }

    /// Whether anybody but `owner` and root could see or change what is in the directory, or lead its path elsewhere.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self, owner: u32) -> core::result::Result<(), Fault> {
        let status = self.status()?;
        if status.st_uid != owner {
            return Err(Fault::Theirs { uid: status.st_uid, up: 0 });
        }
        if status.st_mode & 0o077 != 0 {
            return Err(Fault::Open { mode: status.st_mode & 0o7777, up: 0 });
        }
        self.check_above(owner, &status, 1)
    }

    /// Whether anybody but `owner` and root could swap what `owner` makes in this directory.
    ///
    /// # Errors
    /// The reason, as of a directory that is to be made in this one.
    pub fn check_place(&self, owner: u32) -> core::result::Result<(), Fault> {
        let status = self.status()?;
        check_swap(&status, owner, 1)?;
        self.check_above(owner, &status, 2)
    }

    /// Goes up to the root, `up` levels above the directory that matters for the first step.
    fn check_above(&self, owner: u32, own: &libc::stat, up: usize) -> core::result::Result<(), Fault> {
        let up_once = |dir: &Dir| dir.enter(c"..");
        let (mut below, mut dir) = ((own.st_dev, own.st_ino), up_once(self)?);
        for up in up.. {
            let status = dir.status()?;
            // Above the root is the root.
            if below == (status.st_dev, status.st_ino) {
                break;
            }
            check_swap(&status, owner, up)?;
            (below, dir) = ((status.st_dev, status.st_ino), up_once(&dir)?);
        }
        Ok(())
    }
}

/// Whether the owner of what lies in a directory, and root, are all who can give its name to something else.
fn check_swap(status: &libc::stat, owner: u32, up: usize) -> core::result::Result<(), Fault> {
    let uid = status.st_uid;
    if uid != owner && uid != 0 && Some(uid) != owner_of_root() {
        return Err(Fault::Theirs { uid, up });
    }
    // In a sticky one only owners remove and rename. A group that its owner lets write there is the owner's choice.
    if status.st_mode & libc::S_IWOTH != 0 && status.st_mode & libc::S_ISVTX == 0 {
        return Err(Fault::Open { mode: status.st_mode & 0o7777, up });
    }
    Ok(())
}

/// Whose the root directory is: root's, or in a user namespace that has no number for root, that of nobody, as which root is seen there.
/// Who owns it can lead any path elsewhere.
fn owner_of_root() -> Option<u32> {
    Dir::open(c"/").and_then(|root| root.status()).ok().map(|status| status.st_uid)
}

/// Calls `each` with the name of every entry of a directory that was opened for reading, until it says that it has seen enough.
pub fn for_each_name(dir: &Fd, mut each: impl FnMut(&CStr) -> bool) -> Result<()> {
    /// Offsets in `struct linux_dirent64` (getdents64(2)).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut list = [0u8; 1024];
    loop {
        // SAFETY: the buffer is valid for its length.
        let len = unsafe { syscall!(getdents64, dir.raw(), list.as_mut_ptr() as usize, list.len()) }?;
        if len == 0 {
            return Ok(());
        }
        let mut at = 0;
        while at + NAME < len {
            let length = usize::from(u16::from_ne_bytes([list[at + LENGTH], list[at + LENGTH + 1]])).max(1);
            let name = &list[at + NAME..len.min(at + length)];
            if CStr::from_bytes_until_nul(name).is_ok_and(&mut each) {
                return Ok(());
            }
            at += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::string::String;
    use std::vec::Vec;

    /// An empty directory of the test's own.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(std::format!("memfold-dir-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            set_mode(&path, 0o700);
            Scratch(path)
        }

        fn dir(&self) -> Dir {
            Dir::open(&CString::new(self.0.as_os_str().as_bytes()).unwrap()).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn user() -> u32 {
        crate::thread::effective_user()
    }

    #[test]
    fn a_file_is_made_and_never_found() {
        let scratch = Scratch::new("made");
        let (dir, path) = (scratch.dir(), &scratch.0);
        fs::write(path.join("victim"), b"bytes").unwrap();
        symlink("victim", path.join("link")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        for name in [c"victim", c"link", c"dangling"] {
            assert_eq!(dir.create(name, libc::O_WRONLY).err(), Some(Errno(libc::EEXIST)), "{name:?}");
        }
        assert!(!path.join("nowhere").exists() && fs::read(path.join("victim")).unwrap() == b"bytes");
        drop(dir.create(c"new", libc::O_WRONLY).unwrap());
        assert_eq!(fs::metadata(path.join("new")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.open_file(c"link", libc::O_RDONLY).err(), Some(Errno(libc::ELOOP)));
        assert_eq!(dir.enter(c"link").err(), Some(Errno(libc::ENOTDIR)));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let scratch = Scratch::new("kinds");
        let pipe = CString::new(scratch.0.join("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        fs::create_dir(scratch.0.join("dir")).unwrap();
        let dir = scratch.dir();
        assert_eq!(dir.open_file(c"pipe", libc::O_RDONLY).err(), Some(Errno(libc::EINVAL)));
        assert_eq!(dir.open_file(c"pipe", libc::O_WRONLY).err(), Some(Errno(libc::ENXIO)));
        assert_eq!(dir.open_file(c"dir", libc::O_RDONLY).err(), Some(Errno(libc::EINVAL)));
        let devices = Dir::open(c"/dev").unwrap();
        assert_eq!(devices.open_file(c"null", libc::O_RDONLY).err(), Some(Errno(libc::EINVAL)));
    }

    #[test]
    fn a_directory_that_others_can_swap_or_see_into_is_at_fault() {
        let scratch = Scratch::new("above");
        let (above, below) = (scratch.0.join("a"), scratch.0.join("a/b"));
        fs::create_dir_all(&below).unwrap();
        set_mode(&below, 0o700);
        let check = |path: &Path| {
            Dir::open(&CString::new(path.as_os_str().as_bytes()).unwrap()).unwrap().check(user())
        };
        assert_eq!(check(&below), Ok(()));
        set_mode(&below, 0o750);
        assert_eq!(check(&below), Err(Fault::Open { mode: 0o750, up: 0 }));
        set_mode(&below, 0o700);
        set_mode(&above, 0o777);
        assert_eq!(check(&below), Err(Fault::Open { mode: 0o777, up: 1 }));
        assert_eq!(
            scratch.dir().enter(c"a").unwrap().check_place(user()),
            Err(Fault::Open { mode: 0o777, up: 1 })
        );
        set_mode(&above, 0o1777);
        assert_eq!(check(&below), Ok(()));
        assert_eq!(check(&above), Err(Fault::Open { mode: 0o1777, up: 0 }));
        let other = user() + 1;
        let theirs = Dir::open(c"/").unwrap().check(other);
        assert!(matches!(theirs, Err(Fault::Theirs { up: 0, .. })), "{theirs:?}");
    }

    #[test]
    fn every_name_is_seen_however_many_there_are() {
        let scratch = Scratch::new("names");
        for n in 0..100 {
            fs::write(scratch.0.join(std::format!("a-long-name-of-a-file-{n}")), b"").unwrap();
        }
        let mut names = Vec::new();
        let note = |name: &CStr| {
            names.push(String::from(name.to_str().unwrap()));
            false
        };
        scratch.dir().for_each_name(note).unwrap();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 102);
    }
}
