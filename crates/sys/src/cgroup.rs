//! The limits that control groups set on a process: the tightest of its own group's and those above it, as far as they are seen here.
//!
//! Version 2 is described in Documentation/admin-guide/cgroup-v2.rst, version 1 in Documentation/admin-guide/cgroup-v1. Where both are mounted,
//! both are looked at.
//!
//! What it is not: a way to set anything, and it knows of no controllers but those of memory and of CPU time.

mod cpu;
mod memory;
mod path;

pub use cpu::cpu_quota;
pub use memory::{memory_limit, Group, Held};

use crate::file;
use crate::{Errno, Result};
use core::ffi::CStr;
use path::Path;

/// Longest path of a group's directory, and longest line that is read; groups and mounts beyond that are not seen.
const LONGEST: usize = 4096;

/// More than this is no limit: version 1 has no word for that, and says a number that no machine has.
const NO_LIMIT: u64 = 1 << 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

/// The tightest limit of a process in the hierarchy of `controller`, as `limit_of` reads that of one group; `each` is told every one that is found, and the directory of
/// its group. `ENODATA` where there is none, `ENOENT` where the controller is not mounted here, or no limit of a group that the process is in can be read.
fn tightest(
    pid: Option<u32>,
    controller: &[u8],
    limit_of: impl Fn(Version, &mut Path) -> Option<u64>,
    mut each: impl FnMut(u64, &mut Path),
) -> Result<u64> {
    let mut least: Option<u64> = None;
    for_each_group(pid, controller, |version, directory| {
        if let Some(limit) = limit_of(version, directory) {
            least = least.into_iter().chain([limit]).min();
            each(limit, directory);
        }
    })?;
    match least {
        None => Err(Errno::ENOENT),
        Some(limit) if limit >= NO_LIMIT => Err(Errno::ENODATA),
        Some(limit) => Ok(limit),
    }
}

/// Calls `each` with the directory of the group of a process in the hierarchy of `controller`, and with those of the groups above it: of `pid` as seen from
/// here, or of the calling process.
fn for_each_group(
    pid: Option<u32>,
    controller: &[u8],
    mut each: impl FnMut(Version, &mut Path),
) -> Result<()> {
    let mut list = Path::new();
    match pid {
        Some(pid) => list.push(format_args!("/proc/{pid}/cgroup"))?,
        None => list.push(format_args!("/proc/self/cgroup"))?,
    }
    for_each_line(list.as_c_str()?, |line| {
        let Some((version, group)) = membership(line, controller) else { return };
        let walked = for_each_line(c"/proc/self/mountinfo", |line| {
            let Some((root, point)) = mount(line, version, controller) else { return };
            // A path that is too long is not seen.
            let _ = climb(root, point, group, |directory| each(version, directory));
        });
        // Without /proc/self/mountinfo, as without the mount, nothing is found.
        let _ = walked;
    })
}

/// What a line of `/proc/PID/cgroup` (cgroups(7)) says of the controller: the version, and the group.
fn membership<'l>(line: &'l [u8], controller: &[u8]) -> Option<(Version, &'l [u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    if number == b"0" && controllers.is_empty() {
        return Some((Version::Two, group));
    }
    controllers.split(|&byte| byte == b',').any(|name| name == controller).then_some((Version::One, group))
}

/// The root within the hierarchy, and the mount point, of a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) that is a mount of the controller.
fn mount<'l>(line: &'l [u8], version: Version, controller: &[u8]) -> Option<(&'l [u8], &'l [u8])> {
    let mut words = line.split(|&byte| byte == b' ');
    let (root, point) = (words.nth(3)?, words.next()?);
    words.find(|&word| word == b"-")?;
    let (kind, _source, options) = (words.next()?, words.next()?, words.next()?);
    let is = match version {
        Version::Two => kind == b"cgroup2",
        Version::One => kind == b"cgroup" && options.split(|&byte| byte == b',').any(|o| o == controller),
    };
    is.then_some((root, point))
}

/// Calls `each` with the directory of the group, and of every group above it up to the mount's root.
fn climb(root: &[u8], point: &[u8], group: &[u8], mut each: impl FnMut(&mut Path)) -> Result<()> {
    // A group outside of the mount, or of the namespace, is not seen: what is seen is what lies above it.
    let below = match group.strip_prefix(root).or(if root == b"/" { Some(group) } else { None }) {
        Some(rest) if !rest.windows(3).any(|w| w == b"/..") => rest,
        _ => b"",
    };
    let mut path = Path::new();
    path.push_escaped(point)?;
    let top = path.len();
    path.push_byte(b'/')?;
    below.iter().try_for_each(|&byte| path.push_byte(byte))?;
    loop {
        path.trim(top);
        each(&mut path);
        if !path.go_up(top) {
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;
    use std::{format, fs};

    /// A tree of directories as a mount shows it, and its path as `mountinfo` writes it.
    pub(super) fn tree(name: &str, files: &[(&str, &str)]) -> (String, String) {
        let base = std::env::temp_dir().join(format!("memfold cgroup {name} {}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        for (path, text) in files {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let base: String = base.to_str().unwrap().into();
        let point = base.replace(' ', "\\040");
        (base, point)
    }

    #[test]
    fn a_controller_is_found_among_the_groups_of_a_process() {
        let memory = |line| membership(line, b"memory");
        assert_eq!(memory(b"0::/user.slice/a b"), Some((Version::Two, &b"/user.slice/a b"[..])));
        assert_eq!(memory(b"4:memory:/docker/c0:1"), Some((Version::One, &b"/docker/c0:1"[..])));
        assert_eq!(memory(b"2:cpu,memory:/x"), Some((Version::One, &b"/x"[..])));
        assert_eq!(membership(b"2:cpu,cpuacct:/x", b"cpu"), Some((Version::One, &b"/x"[..])));
        assert_eq!((memory(b"3:cpuset:/"), membership(b"3:cpuset:/", b"cpu")), (None, None));
        assert_eq!(memory(b"nonsense"), None);
    }

    #[test]
    fn mounts_of_either_version_are_told_apart() {
        let two = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let one =
            b"34 25 0:30 /docker/c0 /sys/fs/cgroup/memory ro shared:9 master:1 - cgroup cgroup rw,memory";
        let other = b"35 25 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let memory = |line, version| mount(line, version, b"memory");
        assert_eq!(memory(two, Version::Two), Some((&b"/"[..], &b"/sys/fs/cgroup"[..])));
        assert_eq!(memory(one, Version::One), Some((&b"/docker/c0"[..], &b"/sys/fs/cgroup/memory"[..])));
        assert_eq!((memory(two, Version::One), memory(other, Version::One)), (None, None));
        assert_eq!(mount(one, Version::One, b"cpu"), None);
    }

    #[test]
    fn lines_are_read_however_they_fall_and_too_long_ones_left_out() {
        let long = "x".repeat(2 * LONGEST);
        let (base, _) =
            tree("lines", &[("list", &format!("one\n{long}\ntwo\n{}\n", "y".repeat(LONGEST / 2)))]);
        let path = std::ffi::CString::new(format!("{base}/list")).unwrap();
        let mut seen = Vec::new();
        for_each_line(&path, |line| seen.push((line[0], line.len()))).unwrap();
        assert_eq!(seen, [(b'o', 3), (b't', 3), (b'y', LONGEST / 2)]);
        fs::remove_dir_all(base).unwrap();
    }
}
