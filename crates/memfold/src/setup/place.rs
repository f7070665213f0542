//! Whether a directory is one to write what everybody will rely on.

use anyhow::{bail, Context};
use memfold_sys::dir::{Dir, Fault};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether nobody but root, or who runs this, can change what is in a directory.
///
/// # Errors
/// Who could, or that it cannot be looked at.
pub fn check(dir: &Path) -> anyhow::Result<()> {
    let name = CString::new(dir.as_os_str().as_bytes())?;
    let held = Dir::open(&name)
        .map_err(|error| std::io::Error::from_raw_os_error(error.0))
        .context(dir.display().to_string())?;
    let what = || format!("{} is not for setup to use: it or a directory above", dir.display());
    match held.check_place(memfold_sys::thread::effective_user()) {
        Ok(()) => Ok(()),
        Err(Fault::Theirs { uid, .. }) => bail!("{} belongs to user {uid}; give it to root", what()),
        Err(Fault::Open { mode, .. }) => {
            bail!("{} is writable by everybody (mode {mode:o}); chmod o-w it", what())
        }
        Err(fault) => bail!("{} cannot be looked at: {fault:?}", what()),
    }
}
