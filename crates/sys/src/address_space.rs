//! How much more this process may map, and whether the machine keeps room for what is mapped.

use crate::limits::limit;
use crate::{file, PAGE_SIZE};

/// How many bytes this process may still map and write to (`RLIMIT_AS`, `RLIMIT_DATA`); `None` without limit.
pub fn left() -> Option<u64> {
    let limits = [limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA)];
    if limits == [None; 2] {
        return None;
    }
    // Where it cannot be told what is taken, nothing may be left.
    let taken = taken().unwrap_or([u64::MAX; 2]);
    limits.iter().zip(taken).filter_map(|(limit, taken)| limit.map(|limit| limit.saturating_sub(taken))).min()
}

/// What counts for either limit, bytes: the first and the sixth number of `/proc/thread-self/statm` (proc_pid_statm(5)).
fn taken() -> Option<[u64; 2]> {
    let mut text = [0; 128];
    let words = read(c"/proc/thread-self/statm", &mut text)?;
    let bytes = |place| {
        let pages: u64 = words.split_ascii_whitespace().nth(place)?.parse().ok()?;
        Some(pages * PAGE_SIZE as u64)
    };
    Some([bytes(0)?, bytes(5)?])
}

/// Whether the machine keeps room for all that is mapped to be written, whatever a mapping says (`vm.overcommit_memory=2`, proc_sys_vm(5)).
pub fn is_committed() -> bool {
    let mut text = [0; 16];
    read(c"/proc/sys/vm/overcommit_memory", &mut text).is_some_and(|mode| mode.trim_ascii() == "2")
}

fn read<'a>(path: &core::ffi::CStr, text: &'a mut [u8]) -> Option<&'a str> {
    let file = file::open(path, libc::O_RDONLY, 0).ok()?;
    let len = file::pread(file.raw(), text, 0).ok()?;
    core::str::from_utf8(&text[..len]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;

    #[test]
    fn what_is_mapped_counts_as_taken_and_as_written_only_where_it_can_be() {
        const LEN: u64 = 1 << 36;
        let before = taken().unwrap();
        let base = mem::reserve_aligned(LEN as usize, PAGE_SIZE).unwrap();
        let after = taken().unwrap();
        // SAFETY: just mapped.
        unsafe { mem::munmap(base, LEN as usize) }.unwrap();
        // Other tests map beside.
        assert!(after[0] >= before[0] + LEN / 2 && after[1] < before[1] + LEN / 2, "{before:?} {after:?}");
    }
}
