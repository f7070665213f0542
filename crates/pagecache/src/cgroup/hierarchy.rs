//! Where groups can be made: as root below the root of the memory controller, otherwise in a version 2 group that was
//! delegated to this user.
//!
//! A delegated group may hold processes or controlled groups, not both: this process moves into a group of its own
//! for as long as there is a [`Hierarchy`], and back after it.

use super::{remove, set};
use crate::Unsupported;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;

/// The version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// Limits only.
    V1,
    /// Limits, protection, and write-back that is charged to who caused it.
    V2,
}

/// A place for groups.
#[derive(Debug)]
pub struct Hierarchy {
    /// The version of its memory controller.
    pub version: Version,
    /// The directory in which groups are made.
    pub(super) memory: PathBuf,
    /// The same of the block controller of version 1.
    pub(super) io: Option<PathBuf>,
    /// The group of our own that this process moved into.
    pub(super) delegated: Option<PathBuf>,
}

/// What the name of every group of ours begins with.
const PREFIX: &str = "memfold-pagecache-";

impl Hierarchy {
    /// Finds where this process may make groups, after removing those of killed runs.
    ///
    /// # Errors
    /// [`Unsupported`] with what to do about it.
    pub fn find() -> Result<Hierarchy> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let root = nix::unistd::geteuid().is_root();
        let hierarchy = Hierarchy::among(&mounts, &own, root)?;
        sweep(&hierarchy);
        Ok(hierarchy)
    }

    fn among(mounts: &str, own: &str, root: bool) -> Result<Hierarchy> {
        let needed = || {
            Unsupported(
                "no memory cgroup can be made here: run as root, or in a group that is delegated to you: \
                 systemd-run --user --scope -p Delegate=yes COMMAND"
                    .into(),
            )
        };
        let first = |controller: &str| {
            mounts.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let has = fields.get(3)?.split(',').any(|option| option == controller);
                (fields[2] == "cgroup" && has).then(|| PathBuf::from(fields[1]))
            })
        };
        if let Some(memory) = first("memory") {
            if !root {
                return Err(needed().into());
            }
            return Ok(Hierarchy { version: Version::V1, memory, io: first("blkio"), delegated: None });
        }
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            (fields.next()? == "cgroup2").then_some(path)
        });
        let mount = PathBuf::from(mount.ok_or_else(needed)?);
        if root {
            let hierarchy = Hierarchy { version: Version::V2, memory: mount, io: None, delegated: None };
            hierarchy.enable()?;
            return Ok(hierarchy);
        }
        let path = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(needed)?;
        let memory = mount.join(path);
        let leaf = memory.join(format!("{}-self", label()));
        fs::create_dir(&leaf).map_err(|_| needed())?;
        let hierarchy = Hierarchy { version: Version::V2, memory, io: None, delegated: Some(leaf.clone()) };
        set(&leaf.join("cgroup.procs"), "0").and_then(|()| hierarchy.enable()).map_err(|_| needed())?;
        Ok(hierarchy)
    }

    /// Lets groups inside have memory limits, and throttling where the kernel has it.
    fn enable(&self) -> Result<()> {
        let control = self.memory.join("cgroup.subtree_control");
        let _ = set(&control, "+io");
        set(&control, "+memory")
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        let Some(leaf) = &self.delegated else { return };
        let _ = set(&self.memory.join("cgroup.subtree_control"), "-memory -io");
        let _ = set(&self.memory.join("cgroup.procs"), "0");
        // Removing by killing would end this process, should it not have been able to leave.
        let _ = fs::remove_dir(leaf);
    }
}

/// Removes the groups of runs that are over, with what is left in them.
pub fn sweep(hierarchy: &Hierarchy) {
    for directory in std::iter::once(&hierarchy.memory).chain(&hierarchy.io) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PREFIX) && !is_alive(&name) {
                let _ = remove(&entry.path());
            }
        }
    }
}

/// The first part of a group's name: the prefix, our process and when it started.
pub(super) fn label() -> String {
    let pid = std::process::id();
    format!("{PREFIX}{pid}-{}", started(pid).unwrap_or(0))
}

/// Whether the process that made a group of this name still runs.
fn is_alive(name: &str) -> bool {
    let mut parts = name[PREFIX.len()..].split('-').map(str::parse::<u64>);
    match (parts.next(), parts.next()) {
        (Some(Ok(pid)), Some(Ok(start))) => u32::try_from(pid).is_ok_and(|pid| started(pid) == Some(start)),
        _ => false,
    }
}

/// When a process started, in clock ticks since boot (field 22 of proc_pid_stat(5)).
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Group;
    use std::path::Path;

    const V1: &str = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn the_controller_of_version_1_is_found_where_it_is_mounted() {
        let found = Hierarchy::among(V1, "0::/\n", true).unwrap();
        assert_eq!((found.version, found.memory.to_str()), (Version::V1, Some("/sys/fs/cgroup/memory")));
        assert_eq!(found.io.as_deref(), Some(Path::new("/sys/fs/cgroup/blkio")));
        assert!(Hierarchy::among(V1, "0::/\n", false).unwrap_err().is::<Unsupported>());
        assert!(Hierarchy::among("", "", true).unwrap_err().is::<Unsupported>());
    }

    #[test]
    fn a_delegated_group_of_version_2_is_entered_and_left() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("user/scope");
        fs::create_dir_all(&own).unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        let found = Hierarchy::among(&mounts, "0::/user/scope\n", false).unwrap();
        let leaf = found.delegated.clone().unwrap();
        assert_eq!(leaf.parent(), Some(own.as_path()));
        assert_eq!(fs::read_to_string(leaf.join("cgroup.procs")).unwrap(), "0");
        assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap(), "+memory");
        drop(found);
        assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap(), "-memory -io");
        assert_eq!(fs::read_to_string(own.join("cgroup.procs")).unwrap(), "0");
    }

    #[test]
    fn groups_of_dead_runs_are_swept_and_those_of_living_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy =
            Hierarchy { version: Version::V2, memory: root.path().to_owned(), io: None, delegated: None };
        let living = Group::create(&hierarchy, "x").unwrap();
        let own = std::process::id();
        for name in ["memfold-pagecache-4194304-1-x", &format!("memfold-pagecache-{own}-1-x"), "other-1-1-x"]
        {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let ours = || {
            let entries = fs::read_dir(root.path()).unwrap();
            entries.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with(PREFIX)).count()
        };
        assert_eq!(ours(), 3);
        sweep(&hierarchy);
        assert_eq!(ours(), 1);
        assert!(root.path().join("other-1-1-x").exists());
        drop(living);
        assert_eq!(ours(), 0);
    }
}
