//! The environment, as far as it may be believed: in a program that has rights which whoever started it has not (set-user-ID and its
//! kin) not at all.

use std::ffi::OsString;

/// The value of a variable, if it is set, not empty and to be believed.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty() && !memfold_sys::thread::process_has_more_rights())
}
