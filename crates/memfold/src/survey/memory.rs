//! What a process's memory is made of, by `/proc/PID/smaps`: what folding could reach, and what it could not and why.
//!
//! The rules are the pager's: private anonymous memory that can be written, in stretches of 64 KiB and more, that is not a stack, not locked
//! and not registered with a userfaultfd of the program's own.

use anyhow::Result;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process, VmFlags};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The shortest stretch of memory that is folded, bytes.
const LEAST: u64 = 64 << 10;

/// Why memory cannot be folded, as people read it; or that it can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Private anonymous memory.
    Foldable,
    /// Files: programs, libraries, what is mapped of data.
    File,
    /// Shared between processes.
    Shared,
    /// Stacks.
    Stack,
    /// Stretches below [`LEAST`].
    Small,
    /// Locked in memory.
    Locked,
    /// Huge pages of the file system of that name, before Linux 6.18 those that the program asks for, devices, and what else the kernel keeps apart.
    Special,
    /// The program follows it by a userfaultfd of its own.
    Followed,
}

impl Kind {
    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Foldable => "foldable",
            Kind::File => "files",
            Kind::Shared => "shared",
            Kind::Stack => "stacks",
            Kind::Small => "small pieces",
            Kind::Locked => "locked",
            Kind::Special => "huge pages and devices",
            Kind::Followed => "followed by the program itself",
        }
    }
}

/// A stretch of foldable memory: where it is, and how much of it was not touched since the bits were cleared.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Anonymous memory in it that is cold, bytes.
    pub cold: u64,
}

/// A process's memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Resident bytes of each kind.
    pub resident: BTreeMap<Kind, u64>,
    /// The foldable memory.
    pub foldable: Vec<Stretch>,
}

impl Memory {
    /// Reads it.
    ///
    /// # Errors
    /// There is no such process, or its memory may not be looked at.
    pub fn of(pid: u32) -> Result<Memory> {
        Ok(Memory::from_maps(&Process::new(pid as i32)?.smaps()?.0, memfold_pager::huge_pages_are_folded()))
    }

    fn from_maps(maps: &[MemoryMap], huge_are_folded: bool) -> Memory {
        let mut memory = Memory::default();
        let mut lengths = run_lengths(maps).into_iter();
        for map in maps {
            let length = lengths.next().unwrap_or(0);
            let bytes = |name: &str| map.extension.map.get(name).copied().unwrap_or(0);
            let kind = kind(map, length, huge_are_folded);
            let resident = bytes("Rss");
            // Of a private mapping of a file what was written is memory as any other, but of the pager's not the business.
            *memory.resident.entry(kind).or_default() += resident;
            if kind == Kind::Foldable && resident > 0 {
                let untouched = resident.saturating_sub(bytes("Referenced"));
                memory.foldable.push(Stretch {
                    addresses: map.address.0..map.address.1,
                    cold: untouched.min(bytes("Anonymous")),
                });
            }
        }
        memory
    }

    /// All that is resident.
    pub fn sum(&self) -> u64 {
        self.resident.values().sum()
    }

    /// Of it what could be folded.
    pub fn foldable_bytes(&self) -> u64 {
        self.resident.get(&Kind::Foldable).copied().unwrap_or(0)
    }

    /// Of that what is cold.
    pub fn cold_bytes(&self) -> u64 {
        self.foldable.iter().map(|stretch| stretch.cold).sum()
    }
}

/// Forgets which pages were touched: by `/proc/PID/clear_refs` (proc_pid_clear_refs(5)).
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn forget_touches(pid: u32) -> std::io::Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "1")
}

/// Whether a mapping is private anonymous memory that can be written.
fn is_anonymous(map: &MemoryMap) -> bool {
    let named = matches!(&map.pathname, MMapPath::Other(name) if name.starts_with("anon:"));
    let anonymous = named || matches!(map.pathname, MMapPath::Anonymous | MMapPath::Heap);
    anonymous
        && map.inode == 0
        && map.perms.contains(MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE)
}

/// For each mapping the length of the stretch of anonymous memory that it lies in, without a hole; 0 for others.
fn run_lengths(maps: &[MemoryMap]) -> Vec<u64> {
    let mut lengths = vec![0; maps.len()];
    let mut first = 0;
    for at in 0..maps.len() {
        let goes_on =
            at > first && maps[at].address.0 == maps[at - 1].address.1 && is_anonymous(&maps[at - 1]);
        if !is_anonymous(&maps[at]) || !goes_on {
            first = at;
        }
        if is_anonymous(&maps[at]) {
            let length = maps[at].address.1 - maps[first].address.0;
            lengths[first..=at].fill(length);
        }
    }
    lengths
}

fn kind(map: &MemoryMap, length: u64, huge_are_folded: bool) -> Kind {
    let flags = map.extension.vm_flags;
    let apart = flags.intersects(VmFlags::HT | VmFlags::IO | VmFlags::PF | VmFlags::WF);
    if apart || flags.contains(VmFlags::HG) && !huge_are_folded {
        Kind::Special
    } else if map.perms.contains(MMPermissions::SHARED) {
        Kind::Shared
    } else if matches!(map.pathname, MMapPath::Stack | MMapPath::TStack(_)) || flags.contains(VmFlags::GD) {
        Kind::Stack
    } else if flags.contains(VmFlags::LO) {
        Kind::Locked
    } else if flags.intersects(VmFlags::UM | VmFlags::UW) {
        Kind::Followed
    } else if !is_anonymous(map) {
        Kind::File
    } else if length < LEAST {
        Kind::Small
    } else {
        Kind::Foldable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::process::MemoryMaps;
    use procfs::FromBufRead;

    /// Mappings: address and permissions, path, resident, referenced and anonymous KiB, flags.
    fn maps(rows: &[(&str, &str, u64, u64, u64, &str)]) -> Vec<MemoryMap> {
        let mut text = String::new();
        for (head, path, rss, referenced, anonymous, flags) in rows {
            text += &format!(
                "{head} 00000000 00:00 0 {path}\nRss: {rss} kB\nReferenced: {referenced} kB\nAnonymous: {anonymous} kB\nVmFlags: rd wr {flags}\n"
            );
        }
        MemoryMaps::from_buf_read(text.as_bytes()).unwrap().0
    }

    #[test]
    fn memory_is_told_apart_as_the_pager_does() {
        let rows = [
            ("10000000-10100000 rw-p", "", 1024, 256, 1024, "mr"),
            ("20000000-20008000 rw-p", "", 32, 0, 32, "mr"),
            ("20008000-20010000 rw-p", "[anon:heap]", 32, 0, 32, "mr"),
            ("30000000-30004000 rw-p", "", 16, 0, 16, "mr"),
            ("40000000-40100000 rw-s", "", 512, 0, 0, "sh"),
            ("50000000-50100000 rw-p", "", 512, 0, 512, "lo"),
            ("60000000-60100000 rw-p", "[stack]", 128, 0, 128, "gd"),
            ("70000000-70100000 r--p", "", 64, 0, 64, "mr"),
            ("80000000-80100000 rw-p", "", 256, 0, 256, "dd"),
            ("90000000-90100000 rw-p", "", 8, 0, 8, "wf"),
        ];
        let memory = Memory::from_maps(&maps(&rows), true);
        let kib = |kind: Kind| memory.resident.get(&kind).copied().unwrap_or(0) >> 10;
        assert_eq!(
            (kib(Kind::Foldable), kib(Kind::Small), kib(Kind::Special)),
            (1024 + 64 + 256, 16, 8),
            "{memory:?}"
        );
        assert_eq!(
            (kib(Kind::Shared), kib(Kind::Locked), kib(Kind::Stack), kib(Kind::File)),
            (512, 512, 128, 64)
        );
        assert_eq!(memory.cold_bytes() >> 10, 768 + 64 + 256);
        assert_eq!(memory.sum(), memory.resident.values().sum::<u64>());
        let huge = maps(&[("10000000-10400000 rw-p", "", 4096, 0, 4096, "hg")]);
        let foldable = |folded: bool| Memory::from_maps(&huge, folded).foldable_bytes() >> 20;
        assert_eq!((foldable(true), foldable(false)), (4, 0));
    }
}
