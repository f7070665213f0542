//! Which physical pages a process has, at which of its addresses: `/proc/PID/maps` joined with `/proc/PID/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst).

use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};
use std::ffi::CString;
use std::fs;
use std::io;

/// Entries read at once.
const BATCH: usize = 4096;

/// Calls `each` with the address and the entry of every page in memory of the process's private anonymous mappings that may be
/// written, by address.
///
/// # Errors
/// The process is gone, or its page map may not be read.
fn for_each_present(pid: u32, mut each: impl FnMut(usize, Entry)) -> io::Result<()> {
    let path = CString::new(format!("/proc/{pid}/pagemap"))?;
    let pagemap = Pagemap::open_at(&path).map_err(|error| io::Error::from_raw_os_error(error.0))?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut entries = vec![Entry::default(); BATCH];
    for (start, end) in maps.lines().filter_map(anonymous) {
        let mut at = start;
        while at < end {
            let pages = ((end - at) / PAGE_SIZE).min(BATCH);
            // A mapping that is gone meanwhile has no pages.
            let read = pagemap.entries(at, &mut entries[..pages]).unwrap_or(0);
            let present = entries[..read].iter().enumerate().filter(|(_, entry)| entry.present());
            present.for_each(|(index, entry)| each(at + index * PAGE_SIZE, *entry));
            at += pages * PAGE_SIZE;
        }
    }
    Ok(())
}

/// The same with the number of its physical page in place of the entry; none where those are not told, as to who is not root.
///
/// # Errors
/// As for [`for_each_present`].
pub fn for_each(pid: u32, mut each: impl FnMut(usize, u64)) -> io::Result<()> {
    for_each_present(pid, |address, entry| match entry.frame() {
        0 => {}
        frame => each(address, frame),
    })
}

/// The blocks of 2 MiB in which the process has such pages, joined where they are neighbours. What is only reserved is in none.
///
/// # Errors
/// As for [`for_each_present`].
pub fn blocks(pid: u32) -> io::Result<Vec<(usize, usize)>> {
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for_each_present(pid, |address, _| {
        let base = address & !(EXTENT_SIZE - 1);
        match blocks.last_mut() {
            Some((_, end)) if base < *end => {}
            Some((_, end)) if base == *end => *end += EXTENT_SIZE,
            _ => blocks.push((base, base + EXTENT_SIZE)),
        }
    })?;
    Ok(blocks)
}

/// The range of a line of `/proc/PID/maps` that is private and anonymous and may be written (proc_pid_maps(5)); `None` for any other.
fn anonymous(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    let inode = words.nth(2)?;
    if !rights.starts_with("rw") || !rights.ends_with('p') || inode != "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_folded_is_looked_at() {
        let heap = "55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(anonymous(heap), Some((0x55d0_c0a0_0000, 0x55d0_c0a2_1000)));
        assert_eq!(
            anonymous("7f0000000000-7f0000001000 rw-p 00000000 00:00 0"),
            Some((0x7f00_0000_0000, 0x7f00_0000_1000))
        );
        for other in [
            "7f0000000000-7f0000001000 r-xp 00000000 fe:00 99 /lib/libc.so.6",
            "7f0000000000-7f0000001000 rw-p 00000000 fe:00 99 /lib/libc.so.6",
            "7f0000000000-7f0000001000 rw-s 00000000 00:01 0 /dev/zero",
            "7f0000000000-7f0000001000 ---p 00000000 00:00 0",
            "nonsense",
        ] {
            assert_eq!(anonymous(other), None, "{other}");
        }
    }

    #[test]
    fn blocks_are_those_that_have_pages() {
        let len = 64 * EXTENT_SIZE;
        let base = memfold_sys::mem::reserve_aligned(len, EXTENT_SIZE).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: our own mapping, which nothing else uses.
        unsafe {
            memfold_sys::mem::mprotect(base, len, prot).unwrap();
            memfold_sys::mem::madvise(base, len, libc::MADV_NOHUGEPAGE).unwrap();
            for block in [3, 4, 9] {
                ((base + block * EXTENT_SIZE + 5 * PAGE_SIZE) as *mut u8).write_volatile(1);
            }
        }
        let found = blocks(std::process::id()).unwrap();
        let at = |block| base + block * EXTENT_SIZE;
        let ours: Vec<_> = found.into_iter().filter(|(start, _)| (base..at(64)).contains(start)).collect();
        assert_eq!(ours, [(at(3), at(5)), (at(9), at(10))]);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(for_each(4_194_303, |_, _| {}).is_err() && blocks(4_194_303).is_err());
    }
}
