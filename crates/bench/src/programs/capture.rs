//! The heap of a program that runs plainly, read from outside.

use super::place::Place;
use super::Kind;
use crate::process::tree;
use crate::Unsupported;
use anyhow::{ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

/// Starts a program, has it build a heap of about `bytes`, and returns the private anonymous pages of its processes that are in
/// memory and can be written, in the order of their addresses; not the stacks.
///
/// # Errors
/// [`Unsupported`] where it is not installed; otherwise when it does not start, or may not be read.
pub(crate) fn capture(kind: Kind, bytes: u64) -> Result<Vec<u8>> {
    if let Some(why) = kind.missing() {
        return Err(Unsupported(format!("{}: {why}", kind.name())).into());
    }
    let closed = fs::Permissions::from_mode(0o700);
    let scratch = tempfile::Builder::new().prefix("memfold-capture-").permissions(closed).tempdir()?;
    let place = Place::plain(scratch.path(), bytes);
    let mut subject = kind.start(&place)?;
    subject.load()?;
    let mut pages = Vec::new();
    for pid in tree(subject.started().pid()) {
        read_heap(pid, &mut pages).with_context(|| format!("cannot read the heap of {}", kind.name()))?;
    }
    subject.leave()?;
    subject.started().finish()?;
    ensure!(!pages.is_empty(), "{} has no heap", kind.name());
    Ok(pages)
}

fn read_heap(pid: u32, pages: &mut Vec<u8>) -> Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut page = [0; PAGE_SIZE];
    for (start, end) in maps.lines().filter_map(heap) {
        let mut entries = vec![0; (end - start) / PAGE_SIZE * 8];
        let read = pagemap.read_at(&mut entries, (start / PAGE_SIZE * 8) as u64)?;
        for (number, entry) in entries[..read].chunks_exact(8).enumerate() {
            // Bit 63: in memory (Documentation/admin-guide/mm/pagemap.rst). The process may drop it meanwhile.
            let is_present = entry[7] & 0x80 != 0;
            if is_present && memory.read_exact_at(&mut page, (start + number * PAGE_SIZE) as u64).is_ok() {
                pages.extend_from_slice(&page);
            }
        }
    }
    Ok(())
}

/// The addresses of a line of `maps`, if it is of private anonymous memory that can be written, and no stack. Reservations of more than
/// a terabyte are passed over.
fn heap(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let (access, inode, name) = (fields.next()?, fields.nth(2)?, fields.next().unwrap_or(""));
    let is_heap = access.starts_with("rw") && access.ends_with('p') && inode == "0" && end - start < 1 << 40;
    (is_heap && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"))).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_private_anonymous_and_writable() {
        let anonymous = "7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ";
        assert_eq!(heap(anonymous), Some((0x7f00_0000_0000, 0x7f00_0000_2000)));
        assert!(
            heap("55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]").is_some()
        );
        assert!(heap("7f0000000000-7f0000002000 rw-p 00000000 00:00 0  [anon:glibc: malloc]").is_some());
        for other in [
            "7f0000000000-7f0000002000 r--p 00000000 00:00 0 ",
            "7f0000000000-7f0000002000 rw-s 00000000 00:01 0  /dev/zero (deleted)",
            "7f0000000000-7f0000002000 rw-p 00000000 fe:00 7 /usr/lib/libc.so.6",
            "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0  [stack]",
        ] {
            assert_eq!(heap(other), None, "{other}");
        }
    }
}
