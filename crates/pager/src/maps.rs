//! The lines of `/proc/PID/maps` (proc_pid_maps(5)), as they come in pieces of any length.
//!
//! What it is not: a reader of the file. Only the beginning of a line is kept, so a path is known by its first bytes.

/// So much of a line is kept, bytes: all but a path take at most 73.
const KEPT: usize = 160;

/// What a mapping is to who asks why its pages are resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Private and anonymous.
    Anonymous,
    /// The heap of brk(2).
    Heap,
    /// The first thread's stack.
    Stack,
    /// A file, or what the kernel maps for every process.
    File,
    /// Shared memory: anonymous, of memfd_create(2), shm_open(3) or shmget(2).
    Shared,
    /// Huge pages of hugetlb, which do not count as resident.
    Reserved,
}

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    /// Its first address.
    pub start: usize,
    /// The address after its last.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
    /// It can be accessed in some way.
    pub accessible: bool,
    /// It can be written.
    pub writable: bool,
    /// It can be read and written, and nothing else.
    pub plain: bool,
    /// It is memfold's own, by its name.
    pub own: bool,
}

impl Mapping {
    /// Of a line without its end; `None` for one that is of another form.
    pub(crate) fn of(line: &[u8]) -> Option<Mapping> {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let (range, rights, _offset, device, inode) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
        let (start, end) = (number(&range[..dash])?, number(&range[dash + 1..])?);
        let path = words.next().unwrap_or_default();
        let shared = rights.get(3)? == &b's';
        let memory = [b"/dev/zero".as_slice(), b"/dev/shm/", b"/memfd:", b"/SYSV"];
        let kind = match path {
            _ if path.starts_with(b"/anon_hugepage") => Kind::Reserved,
            _ if shared && (inode == b"0" || memory.iter().any(|name| path.starts_with(name))) => {
                Kind::Shared
            }
            b"[heap]" => Kind::Heap,
            b"[stack]" => Kind::Stack,
            _ if path.starts_with(b"[anon:") => Kind::Anonymous,
            _ if inode == b"0" && device == b"00:00" && path.is_empty() => Kind::Anonymous,
            _ => Kind::File,
        };
        let accessible = rights.iter().take(3).any(|right| *right != b'-');
        let (writable, plain) = (rights.get(1)? == &b'w', rights.get(..3)? == b"rw-");
        let own = path.starts_with(b"[anon:memfold");
        Some(Mapping { start, end, kind, accessible, writable, plain, own })
    }
}

/// A line in the making.
pub(crate) struct Lines {
    bytes: [u8; KEPT],
    len: usize,
}

impl Lines {
    /// No line so far.
    pub(crate) const fn new() -> Lines {
        Lines { bytes: [0; KEPT], len: 0 }
    }

    /// Takes the next byte of the file; the mapping whose line it ends.
    pub(crate) fn push(&mut self, byte: u8) -> Option<Mapping> {
        Mapping::of(self.push_raw(byte)?)
    }

    /// Takes the next byte of a file; the line that it ends.
    pub(crate) fn push_raw(&mut self, byte: u8) -> Option<&[u8]> {
        if byte != b'\n' {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
            return None;
        }
        let len = core::mem::take(&mut self.len);
        Some(&self.bytes[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn read(text: &[u8]) -> Vec<Mapping> {
        let mut lines = Lines::new();
        text.iter().filter_map(|byte| lines.push(*byte)).collect()
    }

    #[test]
    fn lines_of_every_kind_are_told_apart() {
        let text = b"\
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 \n\
7f0000021000-7f0000022000 ---p 00000000 00:00 0 \n\
7f0000022000-7f0000023000 rw-p 00000000 00:00 0                          [anon:glibc: malloc]\n\
55d000000000-55d000021000 rw-p 00000000 00:00 0                          [heap]\n\
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n\
7ffc00022000-7ffc00024000 r-xp 00000000 00:00 0                          [vdso]\n\
7f0000100000-7f0000101000 rw-p 0001c000 08:01 1234                       /usr/lib/a b.so\n\
7f0000200000-7f0000201000 rw-s 0001c000 08:01 1234                       /home/data\n\
7f0000300000-7f0000301000 rw-s 00000000 00:01 1025                       /dev/zero (deleted)\n\
7f0000400000-7f0000401000 rw-s 00000000 00:01 7                          /memfd:a (deleted)\n\
7f0000500000-7f0000700000 rw-p 00000000 00:0f 9                          /anon_hugepage (deleted)\n";
        let found: Vec<_> = read(text).into_iter().map(|mapping| mapping.kind).collect();
        use Kind::*;
        let expected =
            [Anonymous, Anonymous, Anonymous, Heap, Stack, File, File, File, Shared, Shared, Reserved];
        assert_eq!(found, expected);
        let first = Mapping {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0002_1000,
            kind: Anonymous,
            accessible: true,
            writable: true,
            plain: true,
            own: false,
        };
        assert_eq!(read(text)[0], first);
        assert!(!read(text)[1].accessible && !read(text)[1].writable);
    }

    #[test]
    fn a_long_path_is_cut_and_the_next_line_is_whole() {
        let mut text = b"1000-2000 r--p 00000000 08:01 7   /".to_vec();
        text.extend([b'x'; 4096]);
        text.extend(b"\n3000-4000 rw-p 00000000 00:00 0 \n");
        let found = read(&text);
        assert_eq!((found.len(), found[0].kind, found[1].start), (2, Kind::File, 0x3000));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_left(text in prop::collection::vec(any::<u8>(), 0..600)) {
            read(&text);
        }

        #[test]
        fn anything_in_the_place_of_a_word_is_read_or_left(words in prop::collection::vec("[-0-9a-frwxps:/ ]{0,20}", 1..8)) {
            let mut text = words.join(" ").into_bytes();
            text.push(b'\n');
            read(&text);
        }
    }
}
