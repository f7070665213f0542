//! The environment, as far as it may be believed: in a program that has rights which whoever started it has not (set-user-ID and its
//! kin, `AT_SECURE` in getauxval(3)) not at all.

use std::ffi::OsString;

/// The value of a variable, if it is set, not empty and to be believed.
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads what the kernel told this process at its start.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|value| !has_more_rights && !value.is_empty())
}
