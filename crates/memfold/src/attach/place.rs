//! Where the control page of a process that is attached to is to be: in a directory of its own user's, in its own mount namespace and below its own root, as it
//! would have been under `memfold run`.
//!
//! Invariants: for another user's process the directory is made with the rights of that process, by a child of ours that has no others. A file system of that
//! user's that does not answer holds up the child, which has nothing of ours open, and us for a while.

use crate::process;
use crate::run_dir::RunDir;
use anyhow::{bail, Context};
use memfold_attach::hand::{do_apart, Late};
use memfold_pager::base::{Base, Environment};
use memfold_pager::file_path::FilePath;
use memfold_sys::dir::Fault;
use nix::errno::Errno;
use nix::fcntl::{open, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{chroot, fchdir, geteuid, setgroups, setresgid, setresuid, Gid, Uid};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// How long it may take to make one: a process's files may lie on a file system of its user's.
const PATIENCE: Duration = Duration::from_secs(10);

/// A directory, for as long as it takes to attach.
pub enum Place {
    /// Among those of this user.
    Own(RunDir),
    /// Another user's, or in another mount namespace or below another root: its path there.
    Theirs(String),
    /// There, too, and it could not be made.
    Nowhere(String),
}

impl Place {
    /// One for that process.
    ///
    /// # Errors
    /// No directory of this user's can be made or trusted.
    pub fn of(pid: u32) -> anyhow::Result<Place> {
        let seen = |pid: u32| {
            let [mounts, root] = ["ns/mnt", "root"].map(|link| fs::metadata(format!("/proc/{pid}/{link}")));
            let (mounts, root) = (mounts.ok()?, root.ok()?);
            Some((mounts.ino(), root.dev(), root.ino()))
        };
        if process::is_own(pid) && seen(pid) == seen(std::process::id()) {
            return Ok(Place::Own(RunDir::create()?));
        }
        Ok(made_by(pid).map_or_else(|why| Place::Nowhere(format!("{why:#}")), Place::Theirs))
    }

    /// Its path.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn path(&self) -> anyhow::Result<Option<&str>> {
        match self {
            Place::Own(dir) => {
                dir.path().to_str().context("the directory for control pages is not UTF-8").map(Some)
            }
            Place::Theirs(path) => Ok(Some(path)),
            Place::Nowhere(_) => Ok(None),
        }
    }

    /// Why there is none.
    pub fn unseen(&self) -> Option<String> {
        match self {
            Place::Nowhere(why) => Some(why.clone()),
            _ => None,
        }
    }
}

/// What failed, in plain words: they are told by another process.
#[derive(Clone, Copy)]
struct Why {
    what: &'static str,
    fault: Fault,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Kernel(errno) => write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(errno.0)),
            fault => write!(f, "{}: {fault:?}", self.what),
        }
    }
}

/// Makes one as the process would.
fn made_by(pid: u32) -> anyhow::Result<String> {
    let id = |key: &str| -> Option<u32> {
        process::field(&format!("/proc/{pid}/status"), key)?.split_whitespace().nth(1)?.parse().ok()
    };
    let (Some(user), Some(group)) = (id("Uid"), id("Gid")) else { bail!("process {pid} has ended") };
    let of_page = format!("no directory for the control page of process {pid}");
    let made = do_apart([], PATIENCE, Late::Killed, || make_as(pid, user, group));
    match made.with_context(|| of_page.clone())? {
        Some(Ok(path)) => Ok(path.as_str().to_owned()),
        Some(Err(why)) => bail!("{of_page}: {why}"),
        None => bail!("{of_page}: its file system does not answer, or who makes it was ended"),
    }
}

fn make_as(pid: u32, user: u32, group: u32) -> Result<FilePath, Why> {
    let said =
        |what| move |errno: Errno| Why { what, fault: Fault::Kernel(memfold_sys::Errno(errno as i32)) };
    let of_process = |link: &str| {
        let path = format!("/proc/{pid}/{link}");
        open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(said("open"))
    };
    let (mounts, root) = (of_process("ns/mnt")?, of_process("root")?);
    // SAFETY: no memory involved.
    Errno::result(unsafe { libc::setns(mounts.as_raw_fd(), libc::CLONE_NEWNS) }).map_err(said("setns"))?;
    fchdir(root).map_err(said("fchdir"))?;
    chroot(".").map_err(said("chroot"))?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    if uid != geteuid() {
        setgroups(&[gid]).map_err(said("setgroups"))?;
        setresgid(gid, gid, gid).map_err(said("setresgid"))?;
        setresuid(uid, uid, uid).map_err(said("setresuid"))?;
    }
    let in_tmp = |fault| Why { what: "/tmp/memfold-UID", fault };
    let base = Base::usable(Environment::default()).map_err(|refused| in_tmp(refused.fault))?;
    base.make_run().map(|run| run.path).map_err(|errno| in_tmp(errno.into()))
}
