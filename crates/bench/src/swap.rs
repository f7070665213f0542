//! Swap of our own: what devices and files of it have in common.
//!
//! Sources: the swap header is `union swap_header` of include/linux/swap.h; swapon(2).

use anyhow::{ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const LABEL: &str = "memfold-";
const LABEL_OFFSET: usize = 1024 + 4 + 4 + 4 + 16;
const SWAP_FLAG_PREFER: i32 = 0x8000;
const HIGHEST_PRIORITY: i32 = 0x7fff;

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
