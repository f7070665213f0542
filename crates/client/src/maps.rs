//! What lies in a range of this process, by `/proc/self/maps` (proc_pid_maps(5)).

use crate::Error;
use std::fs::File;
use std::io::Read;

/// One line: a mapping.
struct Mapping<'a> {
    start: usize,
    end: usize,
    permissions: &'a str,
    inode: &'a str,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Mapping<'a>> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let inode = fields.nth(2)?;
        let name = fields.next().unwrap_or("").trim();
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(Mapping { start: address(start)?, end: address(end)?, permissions, inode, name })
    }

    /// Why it cannot be folded.
    fn objection(&self) -> Option<String> {
        if self.permissions != "rw-p" {
            return Some(format!("is mapped {}", self.permissions));
        }
        if self.inode != "0" {
            return Some(format!("belongs to the file {}", self.name));
        }
        match self.name {
            "[stack]" => Some("is the stack".into()),
            name if name.starts_with("[anon:memfold") => Some("is memfold's own".into()),
            _ => None,
        }
    }
}

/// Whether all of `start..end` is private anonymous memory, readable and writable.
pub fn check(start: usize, end: usize) -> Result<(), Error> {
    // At once as much as most programs need: in the library for C each block is a mapping.
    let mut maps = String::with_capacity(64 << 10);
    File::open("/proc/self/maps")
        .and_then(|mut file| file.read_to_string(&mut maps))
        .map_err(|_| Error::NotSupported("/proc/self/maps cannot be read (is /proc mounted?)".into()))?;
    check_in(&maps, start, end)
}

fn check_in(maps: &str, start: usize, end: usize) -> Result<(), Error> {
    let mut at = start;
    for mapping in maps.lines().filter_map(Mapping::parse).filter(|m| m.end > start && m.start < end) {
        if mapping.start > at {
            break;
        }
        if let Some(why) = mapping.objection() {
            return Err(Error::NotFoldable { addr: at, why });
        }
        at = mapping.end;
    }
    if at < end {
        return Err(Error::NotFoldable { addr: at, why: "is not mapped".into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 
3000-5000 rw-p 00000000 00:00 0                          [heap]
5000-6000 r--p 00000000 00:00 0 
8000-9000 rw-p 00000000 08:01 42                         /bin/x y
9000-a000 rw-s 00000000 00:01 43                         /dev/zero (deleted)
a000-b000 rw-p 00000000 00:00 0                          [anon:memfold tables]
c000-d000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn only_private_anonymous_writable_memory_passes_and_the_rest_is_named() {
        assert_eq!(check_in(MAPS, 0x1000, 0x5000), Ok(()));
        let objection = |start, end| match check_in(MAPS, start, end) {
            Err(Error::NotFoldable { addr, why }) => (addr, why),
            other => panic!("{other:?}"),
        };
        assert_eq!(objection(0x2000, 0x6000), (0x5000, "is mapped r--p".into()));
        assert_eq!(objection(0x6000, 0x7000), (0x6000, "is not mapped".into()));
        assert_eq!(objection(0x8000, 0x9000), (0x8000, "belongs to the file /bin/x y".into()));
        assert_eq!(objection(0x9000, 0xa000), (0x9000, "is mapped rw-s".into()));
        assert_eq!(objection(0xa000, 0xb000), (0xa000, "is memfold's own".into()));
        assert_eq!(objection(0xc000, 0xd000), (0xc000, "is the stack".into()));
        assert_eq!(objection(0x0, 0x2000), (0x0, "is not mapped".into()));
    }
}
