//! What `/proc` tells of a process: its files as text, and its mappings (proc_pid_maps(5)).
//!
//! Invariants: a process and its files may be called anything. What is no UTF-8 in a name is replaced, and hides nothing of what stands beside it.

use crate::{error, Error};
use nix::errno::Errno;
use std::{fs, io};

/// The text of a file.
pub fn text(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What in a directory is called by a number: processes, or threads of one.
pub fn numbers(dir: &str) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Why a file of a process could not be read or opened.
pub fn why_not(pid: u32, error: &io::Error) -> Error {
    match Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)) {
        Errno::ENOENT | Errno::ESRCH => Error::Ended(pid),
        errno @ (Errno::EACCES | Errno::EPERM) => error::forbidden(pid, errno),
        errno => Error::NotSeen(pid, errno),
    }
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Its first address.
    pub start: usize,
    /// The address after its last.
    pub end: usize,
    /// Four letters, such as `rw-p`.
    rights: String,
    /// The path of its file, or what the kernel calls it; nothing for most anonymous memory.
    pub name: String,
}

impl Map {
    /// Of a line; `None` for one that is of another form.
    fn of(line: &str) -> Option<Map> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.to_owned();
        let name = fields.nth(3).unwrap_or_default().trim_start().to_owned();
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(Map { start: number(start)?, end: number(end)?, rights, name })
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.rights.contains('w')
    }

    /// Whether it can be read and executed.
    pub fn is_code(&self) -> bool {
        self.rights.starts_with('r') && self.rights.contains('x')
    }

    /// Whether it is memory of no file, whatever the program calls it.
    pub fn is_anonymous(&self) -> bool {
        self.name.is_empty() || self.name.starts_with("[anon:")
    }

    /// Whether it is memfold's own, or of its library, also when another file has taken that one's place.
    pub fn is_memfolds(&self) -> bool {
        let path = self.name.strip_suffix(" (deleted)").unwrap_or(&self.name);
        self.name.starts_with("[anon:memfold") || path.ends_with("/libmemfold.so")
    }
}

/// The mappings of a process, known by one of its threads.
///
/// # Errors
/// It has ended, or may not be looked at.
pub fn maps(pid: u32, thread: u32) -> Result<Vec<Map>, Error> {
    let text = text(&format!("/proc/{thread}/maps")).map_err(|error| why_not(pid, &error))?;
    Ok(text.lines().filter_map(Map::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_with_any_name_are_read() {
        let lines = b"\
55d000000000-55d000021000 r-xp 00000000 08:01 77                         /home/caf\xe9 (deleted)\n\
7f0000000000-7f0000001000 rw-p 00000000 08:01 78                         /SYSVx\n\
7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n\
7f0000002000-7f0000003000 rw-p 00000000 00:00 0                          [anon:glibc: malloc]\n\
7ffc00022000-7ffc00024000 r-xp 00000000 00:00 0                          [vdso]\n";
        let lines = String::from_utf8_lossy(lines);
        let maps: Vec<Map> = lines.lines().filter_map(Map::of).collect();
        assert_eq!(maps.len(), 5);
        assert_eq!((maps[0].start, maps[0].end), (0x55d0_0000_0000, 0x55d0_0002_1000));
        let names: Vec<&str> = maps.iter().map(|map| map.name.as_str()).collect();
        let expected = ["/home/caf\u{fffd} (deleted)", "/SYSVx", "", "[anon:glibc: malloc]", "[vdso]"];
        assert_eq!(names, expected);
        assert_eq!(maps.iter().map(Map::is_anonymous).collect::<Vec<_>>(), [false, false, true, true, false]);
        assert_eq!(maps.iter().map(Map::is_code).collect::<Vec<_>>(), [true, false, false, false, true]);
        assert_eq!(maps.iter().map(Map::is_writable).collect::<Vec<_>>(), [false, true, true, true, false]);
        assert!(!maps.iter().any(Map::is_memfolds));
    }

    #[test]
    fn the_library_is_known_after_its_file_was_replaced() {
        let named =
            |name: &str| Map::of(&format!("1000-2000 r-xp 00000000 08:01 7 {name}")).unwrap().is_memfolds();
        assert!(named("/usr/lib/libmemfold.so") && named("/usr/lib/libmemfold.so (deleted)"));
        assert!(named("[anon:memfold agent]"));
        assert!(
            !named("/usr/lib/libmemfold.so.old")
                && !named("/usr/bin/memfold-server")
                && !named("/a/notlibmemfold.so")
        );
    }

    #[test]
    fn only_a_process_that_is_not_there_has_ended() {
        let of = |errno| why_not(7, &io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::ESRCH), Error::Ended(7)));
        assert!(matches!(of(libc::EACCES), Error::Forbidden(7, Errno::EACCES, _)));
        assert!(matches!(of(libc::EMFILE), Error::NotSeen(7, Errno::EMFILE)));
    }
}
