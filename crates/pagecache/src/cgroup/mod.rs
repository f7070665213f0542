//! Memory cgroups of our own, version 1 and 2: made for a run, and gone after it however it ended.
//!
//! What it is not: a manager of other people's groups. Only groups with our name are touched.
//!
//! Invariants: a group's name has the process that made it, with its start time, so that the next run finds the groups
//! of one that was killed, and leaves alone those of one that lives. A group that is dropped is emptied by killing
//! what is left in it, and removed.
//!
//! Sources: Documentation/admin-guide/cgroup-v1/memory.rst and blkio-controller.rst, cgroup-v2.rst.

mod hierarchy;
mod stat;

pub use hierarchy::{sweep, Hierarchy, Version};
pub use stat::{MemoryStat, Pressure};

use crate::Unsupported;
use anyhow::{Context, Result};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A group; empty of processes and removed when it is dropped.
#[derive(Debug)]
pub struct Group {
    version: Version,
    path: PathBuf,
    /// The group of the same name that throttles requests, where that is another hierarchy (version 1).
    io: Option<PathBuf>,
    /// The memory is another group's, which outlives this one.
    lodger: bool,
}

impl Group {
    /// Makes the group `name` in `hierarchy`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(hierarchy: &Hierarchy, name: &str) -> Result<Group> {
        let label = format!("{}-{name}", hierarchy::label());
        let group = Group {
            version: hierarchy.version,
            path: hierarchy.memory.join(&label),
            io: None,
            lodger: false,
        };
        make(&group.path)?;
        Ok(group)
    }

    /// Makes a group inside this one, which must not hold processes itself (version 2).
    ///
    /// # Errors
    /// [`Unsupported`] under version 1, which protects nothing, and when the kernel refuses.
    pub fn child(&self, name: &str) -> Result<Group> {
        if self.version == Version::V1 {
            return Err(Unsupported(
                "memory.min and memory.low need cgroup version 2; memory is version 1 here".into(),
            )
            .into());
        }
        let control = self.path.join("cgroup.subtree_control");
        // Only throttling needs it, and says so where it is missing.
        let _ = set(&control, "+io");
        set(&control, "+memory")?;
        let group = Group { version: self.version, path: self.path.join(name), io: None, lodger: false };
        make(&group.path)?;
        Ok(group)
    }

    /// Limits what the group may have in memory, page cache included, in bytes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        set(&self.path.join(file), &bytes.to_string())
    }

    /// Has the kernel swap nothing of what the group has, whatever swap the machine has, so that a limit is a limit.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn never_swap(&self) -> Result<()> {
        let file = match self.version {
            Version::V1 => "memory.swappiness",
            Version::V2 => "memory.swap.max",
        };
        match set(&self.path.join(file), "0") {
            // A kernel without swap.
            Err(error) if is_missing(&error) => Ok(()),
            result => result,
        }
    }

    /// Protects the group's memory from reclaim on behalf of its siblings, in bytes (version 2).
    ///
    /// # Errors
    /// [`Unsupported`] under version 1; when the kernel refuses.
    pub fn protect(&self, bytes: u64) -> Result<()> {
        if self.version == Version::V1 {
            return Err(
                Unsupported("memory.min needs cgroup version 2; memory is version 1 here".into()).into()
            );
        }
        set(&self.path.join("memory.low"), &bytes.to_string())?;
        set(&self.path.join("memory.min"), &bytes.to_string())
    }

    /// Limits reads and writes of the disk with this number, each in bytes a second (version 2).
    ///
    /// # Errors
    /// [`Unsupported`] where the group has no controller for it; when the kernel refuses.
    pub fn throttle(&self, disk: (u32, u32), rate: u64) -> Result<()> {
        let file = self.path.join("io.max");
        let (major, minor) = disk;
        set(&file, &format!("{major}:{minor} rbps={rate} wbps={rate}"))
            .map_err(|error| Unsupported(format!("the io controller cannot throttle here: {error:#}")).into())
    }

    /// A group with the same memory as this one, whose reads and writes of the disk with this number are limited, each in
    /// bytes a second (version 1). Buffered writes are not: write-back happens in the kernel's name there.
    ///
    /// # Errors
    /// [`Unsupported`] where there is no controller for it; when the kernel refuses.
    pub fn throttled(&self, hierarchy: &Hierarchy, disk: (u32, u32), rate: u64) -> Result<Group> {
        let root =
            hierarchy.io.as_ref().ok_or_else(|| Unsupported("the blkio controller is not mounted".into()))?;
        let io = root.join(self.path.file_name().unwrap_or_default());
        fs::create_dir_all(&io).with_context(|| format!("cannot make the cgroup {}", io.display()))?;
        let group =
            Group { version: self.version, path: self.path.clone(), io: Some(io.clone()), lodger: true };
        let (major, minor) = disk;
        for kind in ["read", "write"] {
            let file = io.join(format!("blkio.throttle.{kind}_bps_device"));
            if !file.exists() {
                return Err(Unsupported("this kernel's blkio controller has no throttling".into()).into());
            }
            set(&file, &format!("{major}:{minor} {rate}"))?;
        }
        Ok(group)
    }

    /// Whether both groups have one account of memory.
    pub fn shares_memory_with(&self, other: &Group) -> bool {
        self.path == other.path
    }

    /// The files that a process writes to when it enters.
    pub fn doors(&self) -> Vec<PathBuf> {
        std::iter::once(&self.path).chain(&self.io).map(|path| path.join("cgroup.procs")).collect()
    }

    /// What the kernel says of the group's memory; zeros where it says nothing.
    pub fn stat(&self) -> MemoryStat {
        MemoryStat::parse(&fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default())
    }

    /// Time lost to memory and requests so far: in the group, or in the whole system under version 1, which keeps no
    /// account of groups.
    pub fn pressure(&self) -> Pressure {
        let read = |what: &str| {
            let own = self.path.join(format!("{what}.pressure"));
            let system = PathBuf::from(format!("/proc/pressure/{what}"));
            stat::full_ns(&fs::read_to_string(if own.exists() { own } else { system }).unwrap_or_default())
        };
        Pressure { memory_ns: read("memory"), io_ns: read("io"), of_group: self.version == Version::V2 }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in self.io.iter().chain((!self.lodger).then_some(&self.path)) {
            let _ = remove(path);
        }
    }
}

fn make(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot make the cgroup {}", path.display()))
}

fn set(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("cannot write {value:?} to {}", file.display()))
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

/// How long the kernel may take to let go of the processes of a group.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills what is in the group, and removes it with the groups inside it.
fn remove(path: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path())?;
            }
        }
        for pid in pids(path) {
            // SAFETY: a signal to a process that our group lists.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // Otherwise its page cache would keep a dead group in the kernel.
        if let Ok(mut file) = fs::OpenOptions::new().write(true).open(path.join("memory.force_empty")) {
            let _ = file.write_all(b"0");
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            result => return result.with_context(|| format!("cannot remove the cgroup {}", path.display())),
        }
    }
}

fn pids(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a hierarchy; the kernel's files come into being as they are written.
    fn fake(version: Version) -> (tempfile::TempDir, Hierarchy) {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        let io = root.path().join("blkio");
        fs::create_dir(&memory).unwrap();
        fs::create_dir(&io).unwrap();
        let io = (version == Version::V1).then_some(io);
        (root, Hierarchy { version, memory, io, delegated: None })
    }

    fn wrote(group: &Group, file: &str) -> String {
        fs::read_to_string(group.path.join(file)).unwrap()
    }

    /// In a real hierarchy files vanish with the group; here they must go first.
    fn forget(group: Group) {
        for path in group.io.iter().chain([&group.path]) {
            fs::remove_dir_all(path).unwrap();
        }
        drop(group);
    }

    #[test]
    fn version_2_is_limited_protected_and_throttled_by_its_own_files() {
        let (_root, hierarchy) = fake(Version::V2);
        let parent = Group::create(&hierarchy, "both").unwrap();
        parent.limit(1 << 20).unwrap();
        parent.never_swap().unwrap();
        let child = parent.child("victim").unwrap();
        child.protect(4096).unwrap();
        child.throttle((8, 16), 1000).unwrap();
        assert_eq!(wrote(&parent, "memory.max"), "1048576");
        assert_eq!(wrote(&parent, "memory.swap.max"), "0");
        assert_eq!(wrote(&parent, "cgroup.subtree_control"), "+memory");
        assert_eq!(
            (wrote(&child, "memory.min").as_str(), wrote(&child, "memory.low").as_str()),
            ("4096", "4096")
        );
        assert_eq!(wrote(&child, "io.max"), "8:16 rbps=1000 wbps=1000");
        assert_eq!(child.doors(), [child.path.join("cgroup.procs")]);
        forget(child);
        forget(parent);
    }

    #[test]
    fn version_1_is_limited_by_its_own_files_and_cannot_protect() {
        let (_root, hierarchy) = fake(Version::V1);
        let group = Group::create(&hierarchy, "both").unwrap();
        group.limit(1 << 20).unwrap();
        group.never_swap().unwrap();
        assert_eq!(wrote(&group, "memory.limit_in_bytes"), "1048576");
        assert_eq!(wrote(&group, "memory.swappiness"), "0");
        for error in [group.protect(1).unwrap_err(), group.child("x").unwrap_err()] {
            assert!(error.downcast::<Unsupported>().unwrap().0.contains("version 2"));
        }
        // A kernel without throttling, then one with it.
        assert!(group.throttled(&hierarchy, (8, 0), 1).unwrap_err().is::<Unsupported>());
        let io = hierarchy.io.as_ref().unwrap().join(group.path.file_name().unwrap());
        assert!(!io.exists(), "a group that cannot throttle is left");
        let blkio = |kind: &str| io.join(format!("blkio.throttle.{kind}_bps_device"));
        fs::create_dir(&io).unwrap();
        ["read", "write"].iter().for_each(|kind| fs::write(blkio(kind), "").unwrap());
        let made = group.throttled(&hierarchy, (8, 0), 7).unwrap();
        assert_eq!(fs::read_to_string(blkio("write")).unwrap(), "8:0 7");
        assert_eq!(made.doors(), [group.path.join("cgroup.procs"), io.join("cgroup.procs")]);
        fs::remove_dir_all(&io).unwrap();
        drop(made);
        assert!(group.path.exists(), "a lodger takes the house with it");
        forget(group);
    }

    #[test]
    fn a_group_that_is_dropped_is_gone_with_the_groups_inside_it() {
        let (_root, hierarchy) = fake(Version::V2);
        let group = Group::create(&hierarchy, "gone").unwrap();
        let path = group.path.clone();
        fs::create_dir(path.join("inside")).unwrap();
        drop(group);
        assert!(!path.exists());
    }

    #[test]
    fn the_real_hierarchy_holds_a_process_and_lets_it_go() {
        let Ok(hierarchy) = Hierarchy::find() else { return };
        let group = Group::create(&hierarchy, "test").unwrap();
        group.limit(64 << 20).unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut running = crate::child::start(command.arg("1000"), "sleep", &group.doors()).unwrap();
        assert_eq!(pids(&group.path).len(), 1);
        assert!(group.pressure().of_group == (hierarchy.version == Version::V2));
        let path = group.path.clone();
        drop(group);
        assert!(!path.exists() && !running.is_running());
    }
}
