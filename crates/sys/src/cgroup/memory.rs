//! The tightest limit on a process's memory: `memory.max` and `memory.high` in version 2, `memory.limit_in_bytes` in version 1.

use super::{tightest, Path, Version, LONGEST};
use crate::file;
use crate::Result;

/// The group that limits the memory of a process most tightly.
#[derive(Debug)]
pub struct Group {
    /// Its limit, bytes.
    pub limit: u64,
    /// Its `memory.stat`, if it can be read.
    stat: Option<file::Fd>,
}

impl Group {
    /// That of the calling process. Errors as of [`memory_limit`].
    pub fn tightest() -> Result<Group> {
        let (mut stat, mut least) = (None, u64::MAX);
        let limit = tightest(None, b"memory", limit_of, |limit, directory| {
            if limit < least {
                least = limit;
                stat = directory.with("memory.stat", |path| file::open(path, libc::O_RDONLY, 0).ok());
            }
        })?;
        Ok(Group { limit, stat })
    }

    /// What all processes in it have that the kernel cannot take from them without swap, bytes: anonymous memory, shared memory, and its own for
    /// them; and of the files that they have mapped, which they would have to read again, up to an eighth of the limit. `None` where that cannot be read.
    pub fn held(&self) -> Option<u64> {
        let mut text = [0; LONGEST];
        let len = file::pread(self.stat.as_ref()?.raw(), &mut text, 0).ok()?;
        held(&text[..len], self.limit / MAPPED)
    }
}

/// One part in so many of a limit is for files that are mapped, if there are as many.
const MAPPED: u64 = 8;

/// What `memory.stat` says of it: `anon`, `shmem`, `file_mapped` and `kernel` but for `slab_reclaimable` in version 2, in version 1 `total_rss`, `total_shmem` and
/// `total_mapped_file`. Of mapped files so much at most counts, bytes.
fn held(stat: &[u8], mapped: u64) -> Option<u64> {
    let value = |name: &[u8]| {
        let number = |line: &[u8]| {
            let number = line.strip_prefix(name)?.strip_prefix(b" ")?;
            core::str::from_utf8(number).ok()?.parse::<u64>().ok()
        };
        stat.split(|&byte| byte == b'\n').find_map(number)
    };
    // In version 1 there are those of the group without its children, too.
    let (anonymous, shared, files) = match value(b"total_rss") {
        Some(anonymous) => (anonymous, value(b"total_shmem"), value(b"total_mapped_file")),
        None => (value(b"anon")?, value(b"shmem"), value(b"file_mapped")),
    };
    // What is shared is mapped, too.
    let (shared, files) = (shared.unwrap_or(0), files.unwrap_or(0));
    let kernel = value(b"kernel").unwrap_or(0).saturating_sub(value(b"slab_reclaimable").unwrap_or(0));
    Some(anonymous + shared + files.saturating_sub(shared).min(mapped) + kernel)
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
        let held = |stat: &[u8]| held(stat, 1000);
        assert_eq!(held(b"anon 8192\nfile 5\nanon_thp 7\n"), Some(8192));
        let kernel =
            b"anon 8192\nkernel 300\nkernel_stack 7\nshmem 40\nfile_mapped 70\nslab_reclaimable 100\n";
        assert_eq!(held(kernel), Some(8192 + 200 + 40 + 30));
        assert_eq!(held(b"anon 8192\nfile_mapped 70000\n"), Some(9192));
        let first = b"rss 2\nshmem 9\nmapped_file 5\ntotal_rss 4096\ntotal_shmem 8\ntotal_mapped_file 20\n";
        assert_eq!(held(first), Some(4096 + 8 + 12));
        assert_eq!(held(b"file 5\n"), None);
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
