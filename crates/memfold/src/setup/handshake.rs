//! The program that makes the handshake of a userfaultfd with reports of forks: where it is, and how it gets the right to that.
//!
//! It is installed apart from the rest, as only setup does it: with the one capability, to be executed by root and the group alone.

use super::place::check;
use crate::embedded;
use crate::library::{check_owners, Places};
use anyhow::Context;
use memfold_attach::rights::HELPER_VARIABLE;
use nix::unistd::Gid;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{fchown, MetadataExt, PermissionsExt};
use std::path::Path;

/// Where it is installed.
pub use memfold_attach::rights::HELPER as PLACE;

/// The file name of the program.
const FILE_NAME: &str = "memfold-handshake";
/// Root's, and executed by the group.
const MODE: u32 = 0o750;
/// The attribute that has a file's capabilities (capabilities(7)).
const ATTRIBUTE: &std::ffi::CStr = c"security.capability";
/// `CAP_SYS_PTRACE` is permitted, and in effect from the start (`struct vfs_cap_data` of linux/capability.h, revision 2).
const CAPABILITY: [u32; 5] = [0x0200_0001, 1 << 19, 0, 0, 0];

/// The program: at the place that the variable names, beside this executable, or inside it. `None` where there is none.
///
/// # Errors
/// It cannot be read, or another user could change what the variable names.
pub fn program() -> anyhow::Result<Option<Vec<u8>>> {
    let places = Places::of(FILE_NAME, HELPER_VARIABLE)?;
    let Some(path) = places.found() else { return Ok(embedded::handshake().filter(|_| !places.named)) };
    let path = path.canonicalize()?;
    check_owners(&path, HELPER_VARIABLE, places.named)?;
    fs::read(&path).map(Some).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether what is installed is this program, with its right for this group; `None` if nothing is.
pub fn is_ready(program: Option<&[u8]>, group: Option<u32>) -> Option<bool> {
    let file = File::open(PLACE).ok()?;
    let meta = file.metadata().ok()?;
    let owned = meta.uid() == 0 && Some(meta.gid()) == group && meta.mode() & 0o7777 == MODE;
    let is_open = Path::new(PLACE)
        .parent()
        .and_then(|dir| dir.metadata().ok())
        .is_some_and(|dir| dir.mode() & 0o011 == 0o011);
    let same = fs::read(PLACE).is_ok_and(|found| program.is_none_or(|program| program == found));
    Some(owned && is_open && same && capability_of(&file) == Some(bytes()))
}

/// Installs it for a group.
///
/// # Errors
/// It cannot be written, or another user could change its directory; the file system has no capabilities, or who runs this may not give any.
pub fn install(program: &[u8], group: Gid) -> anyhow::Result<()> {
    let place = Path::new(PLACE);
    let dir = place.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    check(dir)?;
    // The group has to get there, whatever the umask.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let mut file = tempfile::Builder::new().prefix(".memfold-").tempfile_in(dir)?;
    file.write_all(program)?;
    // In this order: the capability goes when the owner changes, and nobody else may execute it before.
    fchown(file.as_file(), Some(0), Some(group.as_raw()))?;
    file.as_file().set_permissions(fs::Permissions::from_mode(MODE))?;
    give(file.as_file())
        .context("the file system, or a right that is lacking (CAP_SETFCAP), keeps it from its capability")?;
    file.as_file().sync_all()?;
    file.persist(place)?;
    Ok(File::open(dir)?.sync_all()?)
}

/// Removes it, and its directory.
///
/// # Errors
/// It cannot be removed.
pub fn remove() -> anyhow::Result<()> {
    fs::remove_file(PLACE)?;
    // Fails, as it should, if something else is kept there.
    let _ = Path::new(PLACE).parent().map(fs::remove_dir);
    Ok(())
}

fn bytes() -> [u8; 20] {
    let mut bytes = [0; 20];
    for (part, word) in bytes.chunks_exact_mut(4).zip(CAPABILITY) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn give(file: &File) -> std::io::Result<()> {
    let bytes = bytes();
    // SAFETY: a name, and so many bytes.
    let given = unsafe {
        libc::fsetxattr(file.as_raw_fd(), ATTRIBUTE.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0)
    };
    if given == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn capability_of(file: &File) -> Option<[u8; 20]> {
    let mut bytes = [0; 20];
    // SAFETY: a name, and room for so many bytes.
    let len = unsafe {
        libc::fgetxattr(file.as_raw_fd(), ATTRIBUTE.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len())
    };
    (len == 20).then_some(bytes)
}
