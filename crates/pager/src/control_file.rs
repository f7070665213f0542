//! Where a process puts its control page: a file named by its process id, in a directory that it was given.
//!
//! A directory that is named `…-NUMBER` is that of a `memfold run` in the PID namespace of this number, and a process in another
//! one adds its own, `PID@NUMBER`: ids are those of a namespace, and two below the launcher's have the same.
//!
//! To a process that has become another user the directory is closed. It takes one of the same name, in that user's own base ([`crate::base`]).
//!
//! What it is not: who reads it; that is the `memfold` command.
//!
//! Invariants: no allocation and no libc, because a forked child's background thread makes its page itself; a file is made, never
//! found, in a directory that is held open and that no other user but root can swap or write to; a page gets its
//! name only when it is whole, and is mapped only when the file system has set its blocks aside; the file is locked (flock(2)) for
//! as long as a process has it mapped, which says even in another PID namespace that it is in use.

use crate::base::{Base, Environment};
use crate::control::{ControlPage, CONTROL_LEN};
use crate::file_path::FilePath;
use crate::mirror::Mapped;
use crate::text::Line;
use core::cell::UnsafeCell;
use core::fmt::Write;
use memfold_sys::dir::{Dir, Fault};
use memfold_sys::file::Fd;
use memfold_sys::{file, mem, thread, Errno, Result};

/// Room that is left for a file's name.
const NAME: usize = 40;
/// What the names of directories of runs begin with.
const RUN: &str = "run-";
/// How often a page is made that loses its directory meanwhile: who finds none in it may remove it at any time.
const TRIES: u32 = 3;

/// A directory in static memory; none until it is set.
pub struct ControlDir {
    path: UnsafeCell<FilePath>,
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
        ControlDir { path: UnsafeCell::new(FilePath::empty()) }
    }

    /// Sets it. A path of 472 bytes or more is left out: the counters are then seen by nobody.
    ///
    /// # Safety
    /// No other thread uses it yet, and it is set only once.
    pub unsafe fn set(&self, text: &str) {
        if let Some(path) = FilePath::of(text).filter(|_| text.len() < FilePath::ROOM - NAME) {
            // SAFETY: the caller's contract.
            unsafe { *self.path.get() = path };
        }
    }

    fn path(&self) -> &FilePath {
        // SAFETY: no longer written.
        unsafe { &*self.path.get() }
    }

    /// The directory, held open. `ENOENT` where there is none, `EPERM` where another user could swap it or what is in it.
    pub fn open(&self) -> Result<Dir> {
        self.find().map(|place| place.dir)
    }

    fn find(&self) -> Result<Place> {
        if self.path().as_str().is_empty() {
            return Err(Errno::ENOENT);
        }
        let (parent, name) = self.path().parent()?;
        match parent.enter(name.as_c_str()).and_then(trusted) {
            Err(Errno(libc::EACCES)) if is_of_run(name.as_str()) => Place::own(name),
            dir => Ok(Place { dir: dir?, parent, name }),
        }
    }

    /// Opens the file that has the name of this process's control file with `prefix` in front, of the effective user's; `flags` as
    /// `O_RDONLY` and its kin.
    pub fn open_beside(&self, prefix: &str, flags: i32) -> Result<Fd> {
        let mut line = Line::new();
        let _ = write!(line, "{prefix}");
        self.write_name(&mut line);
        let name = FilePath::of(line.as_str()).ok_or(Errno::EINVAL)?;
        self.open()?.open_own_file(name.as_c_str(), flags)
    }

    /// Makes this process's control file, maps it, for ever, and shows `page` in it, which was begun. `None` when there is no
    /// directory for it, no access, no room in the file system or within `RLIMIT_FSIZE`, or the kernel does not copy
    /// ([`crate::mirror`]): the counters are then seen by nobody, and that is all.
    ///
    /// A directory that is gone is made anew: a launcher that ends while its program goes on removes it, if no process has a page
    /// in it yet.
    pub fn make_page(&self, page: &ControlPage) -> Option<Mapped> {
        if self.path().as_str().is_empty() {
            return None;
        }
        for _ in 0..TRIES {
            match self.open().and_then(|dir| self.make_in(&dir, page)) {
                Err(Errno::ENOENT) => {
                    let (parent, name) = self.path().parent().ok()?;
                    let _ = trusted(parent).and_then(|parent| parent.make(name.as_c_str()));
                }
                made => return made.ok(),
            }
        }
        None
    }

    /// Makes a control page in a new file, and gives that its name when it is whole.
    fn make_in(&self, dir: &Dir, page: &ControlPage) -> Result<Mapped> {
        let mut line = Line::new();
        let _ = write!(line, "new-");
        let own = line.as_str().len();
        self.write_name(&mut line);
        let unfinished = FilePath::of(line.as_str()).ok_or(Errno::EINVAL)?;
        let name = FilePath::of(&line.as_str()[own..]).ok_or(Errno::EINVAL)?;
        let (unfinished, name) = (unfinished.as_c_str(), name.as_c_str());
        let file = match dir.create(unfinished, libc::O_RDWR) {
            // Of a process with this number that was killed here.
            Err(Errno(libc::EEXIST)) => {
                dir.remove(unfinished)?;
                dir.create(unfinished, libc::O_RDWR)
            }
            made => made,
        }?;
        let made = map(&file).and_then(|base| {
            // SAFETY: a shared mapping as long as a page, of which nobody knows but who gets this.
            let mapped = unsafe { Mapped::new(base) };
            let shown = if mapped.show(page) { Ok(()) } else { Err(Errno::ENOSYS) };
            // Under its own name only now: the process may end at any moment, and readers find whole pages only.
            shown.and_then(|()| dir.rename(unfinished, name)).map(|()| mapped).inspect_err(|_| {
                // SAFETY: our own mapping, to which nothing refers any more.
                let _ = unsafe { mem::munmap(base, CONTROL_LEN) };
            })
        });
        if made.is_err() {
            let _ = dir.remove(unfinished);
        }
        made
    }

    /// Removes this process's control file, and the directory if it was the last in it. The page stays mapped.
    pub fn remove_page(&self) {
        let Ok(place) = self.find() else { return };
        let mut line = Line::new();
        self.write_name(&mut line);
        if let Some(name) = FilePath::of(line.as_str()) {
            let _ = place.dir.remove(name.as_c_str());
        }
        let _ = place.parent.remove_dir(place.name.as_c_str());
    }

    /// What this process's file is called.
    fn write_name(&self, name: &mut Line) {
        let _ = write!(name, "{}", thread::current_pid());
        let Some(theirs) = namespace_of_dir(self.path().as_str()) else { return };
        // Without /proc it cannot be told, and the launcher's is the likeliest.
        if let Some(own) = file::inode(c"/proc/self/ns/pid").ok().filter(|own| *own != theirs) {
            let _ = write!(name, "@{own}");
        }
    }
}

/// A directory, and where it is.
struct Place {
    parent: Dir,
    name: FilePath,
    dir: Dir,
}

impl Place {
    /// The directory with this name among those of the effective user, made if need be.
    fn own(name: FilePath) -> Result<Place> {
        let parent = Base::usable(Environment::default()).map_err(|_| Errno::EPERM)?.dir;
        match parent.make(name.as_c_str()) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error),
        }
        Ok(Place { dir: trusted(parent.enter(name.as_c_str())?)?, parent, name })
    }
}

/// The directory, if no other user but root can swap what is made in it.
fn trusted(dir: Dir) -> Result<Dir> {
    match dir.check_place(thread::effective_user()) {
        Ok(()) => Ok(dir),
        Err(Fault::Kernel(error)) => Err(error),
        Err(_) => Err(Errno::EPERM),
    }
}

/// The number of the PID namespace in which the processes of a run have their ids, from the run's directory; `None` where that
/// is not told.
pub fn namespace_of_dir(dir: &str) -> Option<u64> {
    let (_, name) = dir.rsplit_once('/')?;
    let mut parts = name.strip_prefix(RUN)?.splitn(3, '-');
    parts.nth(2)?.parse().ok()
}

/// Whether this is what the directory of a `memfold run` is called.
fn is_of_run(name: &str) -> bool {
    name.starts_with(RUN)
}

/// Makes an empty file as long as a control page, and maps it.
fn map(file: &Fd) -> Result<usize> {
    file::allocate(file.raw(), 0, CONTROL_LEN as u64)?;
    // A file system without locks: other namespaces take the page for one that nobody uses.
    let _ = file::lock_shared(file.raw());
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file of this length, unmapped only where nobody uses it.
    unsafe { mem::map_own_shared(file.raw(), CONTROL_LEN, prot) }
}
