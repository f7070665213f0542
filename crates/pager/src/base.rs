//! The directory that holds those of runs, in which processes put their control pages: where it is, and whether it may be used.
//!
//! It is what the user named (`MEMFOLD_RUNTIME_DIR`), else `memfold` in the session's directory (`XDG_RUNTIME_DIR`), else
//! `/tmp/memfold-UID`; and where somebody else has taken that name, `/tmp/memfold-UID-NUMBER` with a number that cannot be foreseen.
//!
//! What it is not: what is in it, which `memfold stat` reads and the library writes ([`crate::control_file`]).
//!
//! Invariants: a directory that is used is held open, belongs to the effective user and is closed to everybody else (0700), is no
//! symbolic link, and lies where no other user but root can swap it. What is above it is looked at before it is made, so that root with
//! another user's environment (`su`, `sudo -E`) makes nothing among that user's files. No allocation.

// Without allocation there is no box for a path; it is asked once a process.
#![allow(clippy::result_large_err)]

use crate::file_path::FilePath;
use crate::text::Line;
use core::ffi::CStr;
use core::fmt::Write;
use memfold_sys::dir::{Dir, Fault};
use memfold_sys::{file, random, thread, time, Errno, Result};

/// How often another number is taken.
const TRIES: u32 = 8;

/// What the environment says, as far as it may be believed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Environment<'a> {
    /// The directory itself (`MEMFOLD_RUNTIME_DIR`); no other is used then.
    pub named: Option<&'a str>,
    /// That of the user's session (`XDG_RUNTIME_DIR`).
    pub session: Option<&'a str>,
}

/// A directory that may be used.
#[derive(Debug)]
pub struct Base {
    /// The directory.
    pub dir: Dir,
    /// Where it was.
    pub path: FilePath,
}

/// A directory that may not be used.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Which.
    pub path: FilePath,
    /// Why.
    pub fault: Fault,
}

impl Base {
    /// The directory to use, made if need be.
    ///
    /// # Errors
    /// What speaks against the last one that was tried.
    pub fn usable(environment: Environment<'_>) -> core::result::Result<Base, Refused> {
        if let Some(named) = environment.named {
            return Base::make(FilePath::of(named));
        }
        if let Some(Ok(base)) =
            environment.session.map(|session| Base::make(FilePath::joined(session, "memfold")))
        {
            return Ok(base);
        }
        let refused = match Base::make(own_name()) {
            Err(refused) => refused,
            made => return made,
        };
        // Nobody else prevents folding by taking the name.
        Base::by_number().ok_or(refused)
    }

    /// Every directory that is there and that [`Base::usable`] could have given, now or in another session.
    pub fn each(environment: Environment<'_>, mut each: impl FnMut(Base)) {
        let session = environment.session.and_then(|session| FilePath::joined(session, "memfold"));
        for path in [environment.named.and_then(FilePath::of), session, own_name()].into_iter().flatten() {
            let _ = Base::find(path).map(&mut each);
        }
        for_each_number(|base| {
            each(base);
            false
        });
    }

    /// The one with a number that exists, the first of several; else a new one.
    fn by_number() -> Option<Base> {
        let mut found: Option<Base> = None;
        for_each_number(|base| {
            if found.as_ref().is_none_or(|found| base.path.as_str() < found.path.as_str()) {
                found = Some(base);
            }
            false
        });
        let new = || {
            let mut number = [0u8; 8];
            random::fill(&mut number).ok()?;
            let mut name = Line::new();
            let _ = write!(name, "{}-{:016x}", own_name()?.as_str(), u64::from_ne_bytes(number));
            Base::make(FilePath::of(name.as_str())).ok()
        };
        found.or_else(|| (0..TRIES).find_map(|_| new()))
    }

    fn make(path: Option<FilePath>) -> core::result::Result<Base, Refused> {
        let Some(path) = path else {
            let fault = Fault::Kernel(Errno(libc::ENAMETOOLONG));
            return Err(Refused { path: FilePath::empty(), fault });
        };
        let made = path.parent().map_err(Fault::from).and_then(|(parent, name)| {
            parent.check_place(thread::effective_user())?;
            match parent.make(name.as_c_str()) {
                Ok(()) | Err(Errno(libc::EEXIST)) => {}
                Err(error) => return Err(error.into()),
            }
            enter(&parent, name.as_c_str())
        });
        match made {
            Ok(dir) => Ok(Base { dir, path }),
            Err(fault) => Err(Refused { path, fault }),
        }
    }

    fn find(path: FilePath) -> core::result::Result<Base, Fault> {
        let (parent, name) = path.parent()?;
        Ok(Base { dir: enter(&parent, name.as_c_str())?, path })
    }

    /// Makes a directory for a run in it, named by process, time and PID namespace.
    pub fn make_run(&self) -> Result<Base> {
        let mut name = Line::new();
        let _ = write!(name, "run-{}-{:x}", thread::current_pid(), time::now().0);
        if let Ok(namespace) = file::inode(c"/proc/self/ns/pid") {
            let _ = write!(name, "-{namespace}");
        }
        let path = FilePath::joined(self.path.as_str(), name.as_str()).ok_or(Errno(libc::ENAMETOOLONG))?;
        let name = FilePath::of(name.as_str()).ok_or(Errno::EINVAL)?;
        self.dir.make(name.as_c_str())?;
        Ok(Base { dir: self.dir.enter(name.as_c_str())?, path })
    }
}

fn enter(parent: &Dir, name: &CStr) -> core::result::Result<Dir, Fault> {
    let dir = parent.enter(name)?;
    dir.check(thread::effective_user())?;
    Ok(dir)
}

fn own_name() -> Option<FilePath> {
    let mut name = Line::new();
    let _ = write!(name, "/tmp/memfold-{}", thread::effective_user());
    FilePath::of(name.as_str())
}

/// Calls `each` with every directory of this user's that has a number, until it says that it has seen enough.
fn for_each_number(mut each: impl FnMut(Base) -> bool) {
    let Some(own) = own_name() else { return };
    let Ok((tmp, own)) = own.parent() else { return };
    let _ = tmp.for_each_name(|name| {
        let number = name.to_str().ok().and_then(|name| name.strip_prefix(own.as_str())?.strip_prefix('-'));
        if number.is_none_or(|number| u64::from_str_radix(number, 16).is_err()) {
            return false;
        }
        let path = name.to_str().ok().and_then(|name| FilePath::joined("/tmp", name));
        match (path, enter(&tmp, name)) {
            (Some(path), Ok(dir)) => each(Base { dir, path }),
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::Path;

    fn usable(named: &Path) -> core::result::Result<Base, Fault> {
        let environment = Environment { named: named.to_str(), session: None };
        Base::usable(environment).map_err(|refused| {
            assert_eq!(refused.path.as_str(), named.to_str().unwrap());
            refused.fault
        })
    }

    #[test]
    fn a_directory_is_made_closed_and_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        for _ in 0..2 {
            assert_eq!(usable(&path).unwrap().path.as_str(), path.to_str().unwrap());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(usable(&path).unwrap_err(), Fault::Open { mode: 0o755, up: 0 });
        assert_eq!(usable(&path.join("a/b")).unwrap_err(), Fault::Kernel(Errno::ENOENT));
    }

    #[test]
    fn a_link_and_a_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert_eq!(usable(&link).unwrap_err(), Fault::NotDirectory);
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert_eq!(usable(&file).unwrap_err(), Fault::NotDirectory);
    }

    #[test]
    fn a_session_that_cannot_be_used_is_passed_over_and_a_run_lies_in_what_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let session = dir.path().join("session");
        fs::create_dir(&session).unwrap();
        let environment = Environment { named: None, session: session.to_str() };
        let base = Base::usable(environment).unwrap();
        assert_eq!(Path::new(base.path.as_str()), session.join("memfold"));
        let run = base.make_run().unwrap();
        assert!(run.path.as_str().starts_with(base.path.as_str()) && Path::new(run.path.as_str()).is_dir());
        let mut seen = std::vec::Vec::new();
        Base::each(environment, |base| seen.push(std::string::String::from(base.path.as_str())));
        assert_eq!(seen[0], base.path.as_str());
        fs::set_permissions(&session, Permissions::from_mode(0o777)).unwrap();
        assert!(Base::usable(environment).unwrap().path.as_str().starts_with("/tmp/memfold-"));
    }
}
