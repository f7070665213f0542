//! Swap of our own: what devices and files of it have in common.
//!
//! Swap is the whole machine's, and of two devices of the same priority the kernel uses both by turns. So one process at a time has
//! any ([`Turn`]).
//!
//! Sources: the swap header is `union swap_header` of include/linux/swap.h; swapon(2).

use anyhow::{ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

const LABEL: &str = "memfold-";
const LABEL_OFFSET: usize = 1024 + 4 + 4 + 4 + 16;
const SWAP_FLAG_PREFER: i32 = 0x8000;
const HIGHEST_PRIORITY: i32 = 0x7fff;

/// Where the kernel lists its swap. Who sets some up has it locked (flock(2)), which ends with the process.
const LIST: &str = "/proc/swaps";

/// This process's lock, if anything of it has swap.
static LOCK: Mutex<Weak<Flock<File>>> = Mutex::new(Weak::new());

/// The right to set up swap, which one process has at a time, for several devices and files if it likes.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "it is the lock")] Arc<Flock<File>>);

impl Turn {
    /// Waits for it, and says so on stderr.
    pub(crate) fn wait() -> Result<Turn> {
        let mut held = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = held.upgrade() {
            return Ok(Turn(lock));
        }
        let list = File::open(LIST).with_context(|| format!("cannot open {LIST}"))?;
        let lock = Flock::lock(list, FlockArg::LockExclusiveNonblock).or_else(|(list, _)| {
            let _ = writeln!(io::stderr(), "memfold: waiting for another benchmark that has swap of its own");
            Flock::lock(list, FlockArg::LockExclusive)
        });
        let lock = Arc::new(lock.map_err(|(_, error)| error).with_context(|| format!("cannot lock {LIST}"))?);
        *held = Arc::downgrade(&lock);
        Ok(Turn(lock))
    }
}

/// Writes the header of swap of `bytes`, in whose label process `pid` is named.
pub(crate) fn write_header(place: &Path, bytes: u64, pid: u32) -> Result<()> {
    let last_page = u32::try_from(bytes / PAGE_SIZE as u64 - 1).context("so much swap is too large")?;
    let mut page = [0u8; PAGE_SIZE];
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_le_bytes());
    let label = format!("{LABEL}{pid}");
    page[LABEL_OFFSET..LABEL_OFFSET + label.len()].copy_from_slice(label.as_bytes());
    page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    let file = OpenOptions::new()
        .write(true)
        .open(place)
        .with_context(|| format!("cannot open {}", place.display()))?;
    file.write_all_at(&page, 0)?;
    Ok(file.sync_all()?)
}

/// The process named in the label, if the label is ours.
pub(crate) fn owner(place: &Path) -> Option<u32> {
    let mut label = [0u8; 16];
    fs::File::open(place).ok()?.read_exact_at(&mut label, LABEL_OFFSET as u64).ok()?;
    let text = std::str::from_utf8(&label).ok()?;
    text.trim_end_matches('\0').strip_prefix(LABEL)?.parse().ok()
}

/// Has the kernel swap there before anywhere else.
pub(crate) fn on(place: &Path) -> Result<()> {
    let path = CString::new(place.as_os_str().as_encoded_bytes())?;
    // SAFETY: a valid path; the call changes nothing in this process.
    let result = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | HIGHEST_PRIORITY) };
    ensure!(result == 0, "cannot swap to {}: {}", place.display(), std::io::Error::last_os_error());
    Ok(())
}

/// Has the kernel swap there no more. Whether it had.
pub(crate) fn off(place: &Path) -> bool {
    let Ok(path) = CString::new(place.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: a valid path. An error means that it was not in use, or cannot go.
    unsafe { libc::swapoff(path.as_ptr()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_header_of_ours_names_its_process_and_others_do_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(owner(file.path()), None);
        write_header(file.path(), 1 << 20, 4321).unwrap();
        assert_eq!(owner(file.path()), Some(4321));
        let bytes = fs::read(file.path()).unwrap();
        assert_eq!(&bytes[PAGE_SIZE - 10..PAGE_SIZE], b"SWAPSPACE2");
        assert_eq!(u32::from_le_bytes(bytes[1028..1032].try_into().unwrap()), 255);
    }
}
