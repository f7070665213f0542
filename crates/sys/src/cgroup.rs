//! The limit that control groups set on the memory of a process: the tightest of its own group's and those above it.
//!
//! Version 2 has `memory.max` and `memory.high` (Documentation/admin-guide/cgroup-v2.rst), version 1 has
//! `memory.limit_in_bytes` (Documentation/admin-guide/cgroup-v1/memory.rst). Where both are mounted, both are looked at.
//!
//! What it is not: a way to set anything, and it knows of no other controller.

use crate::file;
use crate::{Errno, Result};
use core::ffi::CStr;

/// Longest path of a group's directory, and longest line that is read; groups and mounts beyond that are not seen.
const LONGEST: usize = 4096;

/// More than this is no limit: version 1 has no word for that, and says a number that no machine has.
const NO_LIMIT: u64 = 1 << 60;

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
        let limit = walk(None, |limit, directory| {
            if limit < least {
                least = limit;
                let end = directory.len;
                let path = directory.push(format_args!("/memory.stat")).and_then(|()| directory.as_c_str());
                stat = path.and_then(|path| file::open(path, libc::O_RDONLY, 0)).ok();
                directory.len = end;
            }
        })?;
        Ok(Group { limit, stat })
    }

    /// Anonymous memory of all processes in it, bytes; `None` where that cannot be read.
    pub fn anonymous(&self) -> Option<u64> {
        let mut text = [0; LONGEST];
        let len = file::pread(self.stat.as_ref()?.raw(), &mut text, 0).ok()?;
        anonymous(&text[..len])
    }
}

/// What `memory.stat` says of anonymous memory: `anon` in version 2, in version 1 `total_rss`.
fn anonymous(stat: &[u8]) -> Option<u64> {
    let value = |line: &[u8]| {
        let number = line.strip_prefix(b"anon ").or_else(|| line.strip_prefix(b"total_rss "))?;
        core::str::from_utf8(number).ok()?.parse().ok()
    };
    stat.split(|&byte| byte == b'\n').find_map(value)
}

/// The tightest limit on the memory of a process, bytes: of `pid` as seen from here, or of the calling process. `ENODATA` where
/// there is none, `ENOENT` where no memory controller is mounted here that the process is in.
pub fn memory_limit(pid: Option<u32>) -> Result<u64> {
    walk(pid, |_, _| {})
}

/// The same; `each` is told every limit that is found, and the directory of its group.
fn walk(pid: Option<u32>, mut each: impl FnMut(u64, &mut Path)) -> Result<u64> {
    let mut list = Path::new();
    match pid {
        Some(pid) => list.push(format_args!("/proc/{pid}/cgroup"))?,
        None => list.push(format_args!("/proc/self/cgroup"))?,
    }
    let (mut found, mut least) = (false, u64::MAX);
    for_each_line(list.as_c_str()?, |line| {
        let Some((version, group)) = membership(line) else { return };
        let walked = for_each_line(c"/proc/self/mountinfo", |line| {
            let Some((root, point)) = mount(line, version) else { return };
            if let Some(limit) = tightest(root, point, group, version, &mut each) {
                found = true;
                least = least.min(limit);
            }
        });
        // Without /proc/self/mountinfo, as without the mount, nothing is found.
        let _ = walked;
    })?;
    match least {
        _ if !found => Err(Errno::ENOENT),
        limit if limit >= NO_LIMIT => Err(Errno::ENODATA),
        limit => Ok(limit),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

impl Version {
    fn files(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }
}

/// What a line of `/proc/PID/cgroup` (cgroups(7)) says of the memory controller: the version, and the group.
fn membership(line: &[u8]) -> Option<(Version, &[u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    if number == b"0" && controllers.is_empty() {
        return Some((Version::Two, group));
    }
    controllers.split(|&byte| byte == b',').any(|name| name == b"memory").then_some((Version::One, group))
}

/// The root within the hierarchy, and the mount point, of a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) that is a mount of the memory controller.
fn mount(line: &[u8], version: Version) -> Option<(&[u8], &[u8])> {
    let mut words = line.split(|&byte| byte == b' ');
    let (root, point) = (words.nth(3)?, words.next()?);
    words.find(|&word| word == b"-")?;
    let (kind, _source, options) = (words.next()?, words.next()?, words.next()?);
    let is = match version {
        Version::Two => kind == b"cgroup2",
        Version::One => kind == b"cgroup" && options.split(|&byte| byte == b',').any(|o| o == b"memory"),
    };
    is.then_some((root, point))
}

/// The tightest limit from the group up to the mount's root; `None` if not one file could be read.
fn tightest(
    root: &[u8],
    point: &[u8],
    group: &[u8],
    version: Version,
    each: &mut impl FnMut(u64, &mut Path),
) -> Option<u64> {
    // A group outside of the mount, or of the namespace, is not seen: what is seen is what lies above it.
    let below = match group.strip_prefix(root).or(if root == b"/" { Some(group) } else { None }) {
        Some(rest) if !rest.windows(3).any(|w| w == b"/..") => rest,
        _ => b"",
    };
    let mut path = Path::new();
    path.push_escaped(point).ok()?;
    let top = path.len;
    path.push_byte(b'/').ok()?;
    below.iter().try_for_each(|&byte| path.push_byte(byte)).ok()?;
    let mut least = None;
    loop {
        while path.len > top && path.bytes[path.len - 1] == b'/' {
            path.len -= 1;
        }
        let end = path.len;
        for name in version.files() {
            let limit =
                path.push(format_args!("/{name}")).ok().and_then(|()| read_limit(path.as_c_str().ok()?));
            path.len = end;
            if let Some(limit) = limit {
                each(limit, &mut path);
            }
            least = match (least, limit) {
                (Some(a), Some(b)) => Some(u64::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        if path.len <= top {
            return least;
        }
        path.len = path.bytes[..path.len].iter().rposition(|&byte| byte == b'/').unwrap_or(top).max(top);
    }
}

/// A limit as the kernel writes it, bytes; `u64::MAX` for `max`.
fn read_limit(path: &CStr) -> Option<u64> {
    let file = file::open(path, libc::O_RDONLY, 0).ok()?;
    let mut text = [0; 32];
    let len = file::pread(file.raw(), &mut text, 0).ok()?;
    match core::str::from_utf8(&text[..len]).ok()?.trim() {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Calls `f` for every line of a file that fits.
fn for_each_line(path: &CStr, mut f: impl FnMut(&[u8])) -> Result<()> {
    let file = file::open(path, libc::O_RDONLY, 0)?;
    let mut buffer = [0; LONGEST];
    let (mut len, mut too_long) = (0, false);
    loop {
        let read = file::read(file.raw(), &mut buffer[len..])?;
        len += read;
        let mut start = 0;
        while let Some(end) = buffer[start..len].iter().position(|&byte| byte == b'\n') {
            if !core::mem::take(&mut too_long) {
                f(&buffer[start..start + end]);
            }
            start += end + 1;
        }
        if read == 0 {
            return Ok(());
        }
        buffer.copy_within(start..len, 0);
        len -= start;
        if len == LONGEST {
            (len, too_long) = (0, true);
        }
    }
}

/// A path that is put together.
struct Path {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Path {
    fn new() -> Path {
        Path { bytes: [0; LONGEST], len: 0 }
    }

    fn push_byte(&mut self, byte: u8) -> Result<()> {
        // The last byte stays zero.
        if self.len + 1 >= LONGEST {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        self.bytes[self.len] = byte;
        self.len += 1;
        Ok(())
    }

    fn push(&mut self, text: core::fmt::Arguments<'_>) -> Result<()> {
        core::fmt::write(self, text).map_err(|_| Errno(libc::ENAMETOOLONG))
    }

    /// Appends a path as `mountinfo` writes it: blanks and backslashes are a backslash and three octal digits.
    fn push_escaped(&mut self, mut text: &[u8]) -> Result<()> {
        while let Some((&byte, rest)) = text.split_first() {
            let digits =
                rest.get(..3).filter(|d| byte == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
            match digits {
                Some(d) => {
                    self.push_byte(d.iter().fold(0u8, |sum, d| sum.wrapping_mul(8).wrapping_add(d - b'0')))?;
                    text = &rest[3..];
                }
                None => {
                    self.push_byte(byte)?;
                    text = rest;
                }
            }
        }
        Ok(())
    }

    fn as_c_str(&mut self) -> Result<&CStr> {
        self.bytes[self.len] = 0;
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::EINVAL)
    }
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        text.bytes().try_for_each(|byte| self.push_byte(byte)).map_err(|_| core::fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::{format, fs};

    #[test]
    fn the_memory_controller_is_found_among_the_groups_of_a_process() {
        assert_eq!(membership(b"0::/user.slice/a b"), Some((Version::Two, &b"/user.slice/a b"[..])));
        assert_eq!(membership(b"4:memory:/docker/c0:1"), Some((Version::One, &b"/docker/c0:1"[..])));
        assert_eq!(membership(b"2:cpu,memory:/x"), Some((Version::One, &b"/x"[..])));
        assert_eq!(membership(b"3:cpuset:/"), None);
        assert_eq!(membership(b"nonsense"), None);
    }

    #[test]
    fn mounts_of_either_version_are_told_apart() {
        let two = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let one =
            b"34 25 0:30 /docker/c0 /sys/fs/cgroup/memory ro shared:9 master:1 - cgroup cgroup rw,memory";
        let other = b"35 25 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        assert_eq!(mount(two, Version::Two), Some((&b"/"[..], &b"/sys/fs/cgroup"[..])));
        assert_eq!(mount(one, Version::One), Some((&b"/docker/c0"[..], &b"/sys/fs/cgroup/memory"[..])));
        assert_eq!((mount(two, Version::One), mount(other, Version::One)), (None, None));
    }

    #[test]
    fn anonymous_memory_of_a_group_is_found_in_either_version() {
        assert_eq!(anonymous(b"anon 8192\nfile 5\nanon_thp 7\n"), Some(8192));
        assert_eq!(anonymous(b"cache 1\nrss 2\ntotal_cache 3\ntotal_rss 4096\n"), Some(4096));
        assert_eq!(anonymous(b"file 5\n"), None);
    }

    /// A tree of directories as a mount shows it.
    fn tree(name: &str, files: &[(&str, &str)]) -> String {
        let base = std::env::temp_dir().join(format!("memfold cgroup {name} {}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        for (path, text) in files {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        base.to_str().unwrap().into()
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts_and_no_other() {
        let base = tree(
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
        let point = base.replace(' ', "\\040");
        let limit = |root: &str, group: &str| {
            tightest(root.as_bytes(), point.as_bytes(), group.as_bytes(), Version::Two, &mut |_, _| {})
        };
        assert_eq!(limit("/", "/a/b"), Some(300));
        assert_eq!(limit("/", "/"), Some(900));
        assert_eq!(limit("/c", "/c/a/b"), Some(300));
        // Not below the mount, or outside of the namespace: what is seen holds.
        assert_eq!(limit("/c", "/d"), Some(900));
        assert_eq!(limit("/", "/../x"), Some(900));
        assert_eq!(limit("/", "/missing/below"), Some(900));
        fs::remove_dir_all(base).unwrap();
        let base = tree("v1", &[("a/memory.limit_in_bytes", "9223372036854771712\n")]);
        let point = base.replace(' ', "\\040");
        let limit = tightest(b"/", point.as_bytes(), b"/a", Version::One, &mut |_, _| {});
        assert!(limit.is_some_and(|limit| limit >= NO_LIMIT));
        assert_eq!(tightest(b"/", point.as_bytes(), b"/a", Version::Two, &mut |_, _| {}), None);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn lines_are_read_however_they_fall_and_too_long_ones_left_out() {
        let long = "x".repeat(2 * LONGEST);
        let base = tree("lines", &[("list", &format!("one\n{long}\ntwo\n{}\n", "y".repeat(LONGEST / 2)))]);
        let path = std::ffi::CString::new(format!("{base}/list")).unwrap();
        let mut seen = std::vec::Vec::new();
        for_each_line(&path, |line| seen.push((line[0], line.len()))).unwrap();
        assert_eq!(seen, [(b'o', 3), (b't', 3), (b'y', LONGEST / 2)]);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn this_process_has_a_limit_or_none_and_says_which() {
        let found = memory_limit(None);
        assert!(matches!(found, Ok(_) | Err(Errno::ENODATA | Errno::ENOENT)), "{found:?}");
        assert_eq!(memory_limit(Some(std::process::id())), found);
    }
}
