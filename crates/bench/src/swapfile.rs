//! The kernel's swap to a file on a disk, for one process: the file, and the control group from which the kernel takes the pages.
//!
//! Advice to page out (`MADV_PAGEOUT`) writes a page and leaves it in memory, as a copy of what is in swap, until memory is scarce: a touch
//! would find it there. So the process has a control group of its own, of which the kernel is told to take back all that it can.
//!
//! What it is not: a set-up for users. The file takes the highest swap priority, for the minutes of a run.
//!
//! Invariants: only a file and a group that this module made are ever removed. Both are named by their process, so that the next run also finds
//! those of one that was killed.
//!
//! Sources: Documentation/admin-guide/cgroup-v1/memory.rst (`memory.force_empty`), Documentation/admin-guide/cgroup-v2.rst (`memory.reclaim`).

use crate::undo::Undo;
use crate::{swap, Unsupported};
use anyhow::{Context, Result};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = ".memfold-swap-";
const GROUP: &str = "memfold-swap-";
/// Swap to a file of our own; gone when dropped, on a signal and on a panic.
#[derive(Debug)]
pub struct SwapFile {
    group: PathBuf,
    door: &'static str,
    // Before the turn, which ends when the file is gone.
    _undo: Undo,
    _turn: swap::Turn,
}

impl SwapFile {
    /// Makes a file of `bytes` in `directory` and has the kernel swap to it before anywhere else. First waits until no other process has swap of its
    /// own by this crate, and removes what killed runs left behind.
    ///
    /// # Errors
    /// [`Unsupported`] without root, swap to that file system or a memory controller; otherwise what could not be done.
    pub fn start(directory: &Path, bytes: u64) -> Result<SwapFile> {
        if fs::read_to_string("/sys/module/zswap/parameters/enabled").is_ok_and(|text| text.trim() == "Y") {
            return Err(Unsupported(
                "zswap would keep in memory what is to go to the disk: \
                 echo N >/sys/module/zswap/parameters/enabled"
                    .into(),
            )
            .into());
        }
        SwapFile::behind(directory, bytes)
    }

    /// The same behind whatever the kernel has before it.
    ///
    /// # Errors
    /// As there.
    pub fn behind(directory: &Path, bytes: u64) -> Result<SwapFile> {
        // SAFETY: no arguments, no effects.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Unsupported(
                "comparing with the kernel's swap needs root: run as root, or leave --vs out".into(),
            )
            .into());
        }
        let (root, door) = controller().ok_or_else(|| {
            Unsupported("no memory controller of control groups is mounted at /sys/fs/cgroup".into())
        })?;
        let turn = swap::Turn::wait()?;
        remove_stale(directory, root);
        let pid = std::process::id();
        let (file, group) = (directory.join(format!("{FILE}{pid}")), root.join(format!("{GROUP}{pid}")));
        let undo = {
            let (file, group) = (file.clone(), group.clone());
            Undo::at_end(move || remove(&file, &group, root))?
        };
        fs::create_dir(&group).map_err(|error| {
            Unsupported(format!("no control group can be made in {}: {error}", root.display()))
        })?;
        make(&file, bytes)?;
        swap::write_header(&file, bytes, pid)?;
        swap::on(&file).map_err(|error| Unsupported(format!("{error:#}; another directory may do")))?;
        Ok(SwapFile { group, door, _undo: undo, _turn: turn })
    }

    /// Has the process of a command pay for its memory here.
    ///
    /// # Errors
    /// When the group cannot be opened.
    pub fn adopt(&self, command: &mut Command) -> Result<()> {
        let procs = OpenOptions::new().write(true).open(self.group.join("cgroup.procs"))?;
        // SAFETY: write(2) is async-signal-safe, and the closure allocates nothing. 0 is who writes.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
        Ok(())
    }

    /// Has the kernel take back all that it can of what the processes here have. What stays is not counted.
    pub fn reclaim(&self) {
        // Version 2 answers that it got less than that.
        let _ = fs::write(self.group.join(self.door), "1T");
    }
}

/// Pages that lie in swap and in memory, of all processes.
///
/// # Errors
/// When the kernel does not say.
pub fn cached_pages() -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("SwapCached:"))
        .context("no SwapCached in /proc/meminfo")?;
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 4)
}

/// Where the memory controller of either version is, and what has it take memory back.
fn controller() -> Option<(&'static Path, &'static str)> {
    let (one, two) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    if one.join("memory.limit_in_bytes").exists() {
        return Some((one, "memory.force_empty"));
    }
    let given = fs::read_to_string(two.join("cgroup.subtree_control")).unwrap_or_default();
    given.split_whitespace().any(|name| name == "memory").then_some((two, "memory.reclaim"))
}

fn make(path: &Path, bytes: u64) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    // SAFETY: no memory involved.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error())
            .with_context(|| format!("no room for a swap file of {} MiB at {}", bytes >> 20, path.display())),
    }
}

fn remove(file: &Path, group: &Path, root: &Path) {
    swap::off(file);
    let _ = fs::remove_file(file);
    // Whoever is left in it goes where it is at home.
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = fs::write(root.join("cgroup.procs"), pid);
    }
    let _ = fs::remove_dir(group);
}

fn remove_stale(directory: &Path, root: &Path) {
    let left = |directory: &Path, prefix: &str| -> Vec<(u32, PathBuf)> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let of = |path: PathBuf| {
            let pid = path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((pid, path))
        };
        entries.filter_map(|entry| of(entry.path())).collect()
    };
    let is_gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
    for (_, file) in left(directory, FILE).into_iter().filter(|(pid, _)| is_gone(*pid)) {
        if swap::owner(&file).is_some_and(is_gone) {
            swap::off(&file);
        }
        let _ = fs::remove_file(file);
    }
    for (_, group) in left(root, GROUP).into_iter().filter(|(pid, _)| is_gone(*pid)) {
        let _ = fs::remove_dir(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_runs_left_is_removed_and_what_others_have_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: String| {
            let path = directory.path().join(name);
            fs::write(&path, b"x").unwrap();
            path
        };
        let ours = file(format!("{FILE}{}", std::process::id()));
        let (killed, other) = (file(format!("{FILE}{}", u32::MAX)), file("swapfile".into()));
        remove_stale(directory.path(), directory.path());
        assert!(ours.exists() && other.exists() && !killed.exists());
    }

    #[test]
    fn the_kernel_says_how_much_lies_in_both() {
        assert!(cached_pages().is_ok());
    }
}
