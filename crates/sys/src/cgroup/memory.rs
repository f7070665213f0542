//! The tightest limit on a process's memory: `memory.max` and `memory.high` in version 2, `memory.limit_in_bytes` in version 1.

use super::{tightest, Path, Version, LONGEST};
use crate::file;
use crate::Result;

/// The group that limits the memory of a process most tightly.
#[derive(Debug)]
pub struct Group {
    /// Its limit, bytes.
    pub limit: u64,
    /// What is charged to it, and `memory.stat`, as far as they can be read.
    usage: Option<file::Fd>,
    stat: Option<file::Fd>,
    /// Its processes, where there are no groups in it that may have others.
    processes: Option<file::Fd>,
}

/// What a group has of its limit, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// What the kernel cannot take from it without swap: all but files, and of its own memory what it says that it can do without.
    pub firm: u64,
    /// Files that are mapped, which would have to be read again: an eighth of the limit at most.
    pub mapped: u64,
}

impl Group {
    /// That of the calling process. Errors as of [`memory_limit`].
    pub fn tightest() -> Result<Group> {
        let mut group = Group { limit: u64::MAX, usage: None, stat: None, processes: None };
        group.limit = tightest(None, b"memory", limit_of, |limit, directory| {
            if limit >= group.limit {
                return;
            }
            let nested = has_groups(directory);
            let mut open = |name| directory.with(name, |path| file::open(path, libc::O_RDONLY, 0).ok());
            group = Group {
                limit,
                usage: open("memory.current").or_else(|| open("memory.usage_in_bytes")),
                stat: open("memory.stat"),
                processes: if nested { None } else { open("cgroup.procs") },
            };
        })?;
        Ok(group)
    }

    /// What all processes in it and in the groups below it have. `None` where that cannot be read.
    pub fn held(&self) -> Option<Held> {
        let (mut usage, mut stat) = ([0; 32], [0; LONGEST]);
        let usage = read(self.usage.as_ref()?, &mut usage)?;
        held(usage, read(self.stat.as_ref()?, &mut stat)?, self.limit / MAPPED)
    }

    /// How many processes are in it; `None` where that is not known, as there are groups below it.
    pub fn processes(&self) -> Option<usize> {
        let mut list = [0; LONGEST];
        Some(read(self.processes.as_ref()?, &mut list)?.iter().filter(|&&byte| byte == b'\n').count())
    }
}

/// Whether there are groups below that of a directory. They alone are directories in it, each with a link to it.
fn has_groups(directory: &mut Path) -> bool {
    let opened = directory.as_c_str().and_then(|path| file::open(path, libc::O_PATH | libc::O_DIRECTORY, 0));
    opened.and_then(|directory| file::status(directory.raw())).is_ok_and(|status| status.st_nlink > 2)
}

/// What a file holds, as far as there is room for it.
fn read<'t>(file: &file::Fd, text: &'t mut [u8]) -> Option<&'t [u8]> {
    let len = file::pread(file.raw(), text, 0).ok()?;
    Some(&text[..len])
}

/// One part in so many of a limit is for files that are mapped, if there are as many.
const MAPPED: u64 = 8;

/// What is held of so many bytes that are charged, by `memory.stat`: without the lists of files, on which shared memory is not, and without `slab_reclaimable`, which version 1
/// does not tell. Of mapped files so much at most counts, bytes.
fn held(usage: &[u8], stat: &[u8], mapped: u64) -> Option<Held> {
    let value = |name: &[u8]| {
        stat.split(|&byte| byte == b'\n')
            .find_map(|line| number(line.strip_prefix(name)?.strip_prefix(b" ")?))
    };
    // In version 1 there are those of the group without its children, too.
    let all = |total: &[u8], name: &[u8]| value(total).or_else(|| value(name));
    let files = all(b"total_active_file", b"active_file")? + all(b"total_inactive_file", b"inactive_file")?;
    let spare = files + value(b"slab_reclaimable").unwrap_or(0);
    let shared = all(b"total_shmem", b"shmem").unwrap_or(0);
    let in_view = value(b"total_mapped_file").or_else(|| value(b"file_mapped")).unwrap_or(0);
    Some(Held {
        firm: number(usage.trim_ascii())?.saturating_sub(spare),
        // What is shared is mapped, too.
        mapped: in_view.saturating_sub(shared).min(files).min(mapped),
    })
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// The tightest limit on the memory of a process, bytes: of `pid` as seen from here, or of the calling process. `ENODATA` where
/// there is none, `ENOENT` where no memory controller is mounted here that the process is in.
pub fn memory_limit(pid: Option<u32>) -> Result<u64> {
    tightest(pid, b"memory", limit_of, |_, _| {})
}

/// A group's own limit, bytes; `u64::MAX` for none, `None` if no file of it could be read.
fn limit_of(version: Version, directory: &mut Path) -> Option<u64> {
    let files: &[&str] = match version {
        Version::One => &["memory.limit_in_bytes"],
        Version::Two => &["memory.max", "memory.high"],
    };
    let read = |name: &&str| match directory.read(name, &mut [0; 32])? {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    files.iter().filter_map(read).min()
}

#[cfg(test)]
mod tests {
    use super::super::{climb, tests::tree};
    use super::*;
    use crate::cgroup::NO_LIMIT;
    use crate::Errno;
    use std::fs;

    #[test]
    fn what_a_group_holds_is_found_in_either_version() {
        let held = |usage: &[u8], stat: &[u8]| held(usage, stat, 1000).map(|held| (held.firm, held.mapped));
        let second = b"anon 8192\nfile 70\nshmem 40\nfile_mapped 70\ninactive_file 20\nactive_file 30\nslab_reclaimable 100\n";
        assert_eq!(held(b"9000\n", second), Some((8850, 30)));
        // What is shared need not be mapped, and only so much of the files counts.
        assert_eq!(
            held(b"9000\n", b"file_mapped 70000\ninactive_file 5000\nactive_file 2000\n"),
            Some((2000, 1000))
        );
        let first =
            b"rss 2\nshmem 9\nmapped_file 5\nactive_file 3\ninactive_file 4\ntotal_rss 4096\ntotal_shmem 8\n\
            total_mapped_file 20\ntotal_active_file 30\ntotal_inactive_file 40\n";
        assert_eq!(held(b"5000\n", first), Some((4930, 12)));
        assert_eq!(held(b"", second), None);
        assert_eq!(held(b"9000\n", b"file 5\n"), None);
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts_and_no_other() {
        let least = |point: &str, root: &str, group: &str, version| {
            let mut least: Option<u64> = None;
            climb(root.as_bytes(), point.as_bytes(), group.as_bytes(), |directory| {
                least = least.into_iter().chain(limit_of(version, directory)).min();
            })
            .unwrap();
            least
        };
        let (base, point) = tree(
            "v2",
            &[
                ("memory.max", "900\n"),
                ("a/memory.max", "max\n"),
                ("a/memory.high", "300\n"),
                ("a/b/memory.max", "500\n"),
                ("a/b/memory.high", "max\n"),
                ("a/other/memory.max", "7\n"),
            ],
        );
        let limit = |root, group| least(&point, root, group, Version::Two);
        assert_eq!(limit("/", "/a/b"), Some(300));
        assert_eq!(limit("/", "/"), Some(900));
        assert_eq!(limit("/c", "/c/a/b"), Some(300));
        // Not below the mount, or outside of the namespace: what is seen holds.
        assert_eq!(limit("/c", "/d"), Some(900));
        assert_eq!(limit("/", "/../x"), Some(900));
        assert_eq!(limit("/", "/missing/below"), Some(900));
        fs::remove_dir_all(base).unwrap();
        let (base, point) = tree("v1", &[("a/memory.limit_in_bytes", "9223372036854771712\n")]);
        let limit = least(&point, "/", "/a", Version::One);
        assert!(limit.is_some_and(|limit| limit >= NO_LIMIT));
        assert_eq!(least(&point, "/", "/a", Version::Two), None);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn this_process_has_a_limit_or_none_and_says_which() {
        let found = memory_limit(None);
        assert!(matches!(found, Ok(_) | Err(Errno::ENODATA | Errno::ENOENT)), "{found:?}");
        assert_eq!(memory_limit(Some(std::process::id())), found);
    }
}
