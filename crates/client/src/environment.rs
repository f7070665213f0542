//! The environment, as far as it may be believed: in a program that has rights which whoever started it has not (set-user-ID and its
//! kin) not at all.

use memfold_pager::config;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether nothing is said: read once, since agent threads cannot ask the environment.
static QUIET: AtomicBool = AtomicBool::new(false);

/// The value of a variable, if it is set, not empty and to be believed.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty() && !memfold_sys::thread::process_has_more_rights())
}

/// All variables of memfold's that are set, not empty and to be believed.
#[derive(Debug, Default)]
pub struct Environment(HashMap<String, String>);

impl Environment {
    /// That of this process, as it is now.
    pub fn now() -> Environment {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let ours = names.filter(|name| name.starts_with("MEMFOLD_"));
        let with_text = |name: String| {
            let text = variable(&name)?.to_string_lossy().into_owned();
            Some((name, text))
        };
        Environment(ours.filter_map(with_text).collect())
    }

    /// What a variable says.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[cfg(test)]
impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(all: I) -> Environment {
        Environment(all.into_iter().map(|(name, text)| (name.into(), text.into())).collect())
    }
}

/// Takes note of what agent threads need to know. To be called once, before there are any.
pub fn settle() {
    let asks = |value: OsString| value.to_str().is_none_or(config::is_quiet);
    QUIET.store(variable("MEMFOLD_QUIET").is_some_and(asks), Relaxed);
}

/// Whether no lines are wanted on standard error (`MEMFOLD_QUIET`).
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}
