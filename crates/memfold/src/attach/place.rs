//! Where the control page of a process that is attached to is to be: in a directory of its own user's, in its own mount namespace and below its own root, as it
//! would have been under `memfold run`.
//!
//! Invariants: for another user's process the directory is made with the rights of that process, by a child of ours that has no others.

use crate::process;
use crate::run_dir::RunDir;
use anyhow::{bail, Context};
use memfold_pager::base::{Base, Environment};
use nix::sys::wait::waitpid;
use nix::unistd::{fork, geteuid, setgroups, setresgid, setresuid, ForkResult, Gid, Uid};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

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

/// Makes one as the process would.
fn made_by(pid: u32) -> anyhow::Result<String> {
    let id = |key: &str| -> Option<u32> {
        process::field(&format!("/proc/{pid}/status"), key)?.split_whitespace().nth(1)?.parse().ok()
    };
    let (Some(user), Some(group)) = (id("Uid"), id("Gid")) else { bail!("process {pid} has ended") };
    let of_process = |link: &str| {
        File::open(format!("/proc/{pid}/{link}")).with_context(|| format!("process {pid} cannot be entered"))
    };
    let (mounts, root) = (of_process("ns/mnt")?, of_process("root")?);
    let (mut told, mut tells) = std::io::pipe()?;
    // SAFETY: the child makes a directory, writes its path and ends; this process has no other thread whose locks it could need.
    let child = match unsafe { fork() }.context("no process to make the directory for control pages")? {
        ForkResult::Child => {
            let answer = make_as(user, group, &mounts, &root).unwrap_or_else(|why| format!("!{why}"));
            let _ = tells.write_all(answer.as_bytes());
            // SAFETY: ends the child, and runs nothing of the parent's.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => child,
    };
    drop(tells);
    let mut answer = String::new();
    let read = told.read_to_string(&mut answer);
    let _ = waitpid(child, None);
    read?;
    match answer.strip_prefix('!') {
        None if !answer.is_empty() => Ok(answer),
        why => bail!(
            "no directory for the control page of process {pid}: {}",
            why.unwrap_or("its maker was ended")
        ),
    }
}

fn make_as(user: u32, group: u32, mounts: &File, root: &File) -> Result<String, String> {
    let said = |what: &'static str| move |errno: nix::errno::Errno| format!("{what}: {errno}");
    // SAFETY: no memory involved.
    if unsafe { libc::setns(mounts.as_raw_fd(), libc::CLONE_NEWNS) } != 0 {
        return Err(said("setns")(nix::errno::Errno::last()));
    }
    // SAFETY: no memory involved.
    nix::errno::Errno::result(unsafe { libc::fchdir(root.as_raw_fd()) }).map_err(said("fchdir"))?;
    std::os::unix::fs::chroot(".").map_err(|error| format!("chroot: {error}"))?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    if uid != geteuid() {
        setgroups(&[gid]).map_err(said("setgroups"))?;
        setresgid(gid, gid, gid).map_err(said("setresgid"))?;
        setresuid(uid, uid, uid).map_err(said("setresuid"))?;
    }
    let base = Base::usable(Environment::default())
        .map_err(|refused| format!("{}: {:?}", refused.path.as_str(), refused.fault))?;
    let run = base.make_run().map_err(|error| format!("{}: {error}", base.path.as_str()))?;
    Ok(run.path.as_str().to_owned())
}
