//! What a shell may put behind a word that is half typed: folded processes, and programs.

use crate::{pages, process};
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

/// The folded processes that this user sees, by number and by name.
pub fn processes(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    for pid in pages::visible().into_iter().map(|found| found.pid) {
        let name = process::name(pid);
        found.push(CompletionCandidate::new(pid.to_string()).help(Some(name.clone().into())));
        names.insert(name);
    }
    found.extend(names.into_iter().map(CompletionCandidate::new));
    found.retain(|candidate| candidate.get_value().as_bytes().starts_with(current.as_bytes()));
    found
}

/// A program and its arguments: first what can be executed, then files.
pub struct Programs;

impl ValueCompleter for Programs {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        if current.as_bytes().contains(&b'/') {
            return PathCompleter::any().complete(current);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let files =
            std::env::split_paths(&path).filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let programs = files.filter(|file| {
            file.file_name().as_bytes().starts_with(current.as_bytes())
                && std::fs::metadata(file.path())
                    .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        });
        let names: BTreeSet<_> = programs.map(|file| file.file_name()).collect();
        names.into_iter().map(CompletionCandidate::new).collect()
    }

    fn complete_at(&self, at: usize, current: &OsStr) -> Vec<CompletionCandidate> {
        match at {
            0 => self.complete(current),
            _ => PathCompleter::any().complete(current),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_come_from_the_path_and_their_arguments_are_files() {
        let names = |at, current: &str| -> Vec<String> {
            let found = Programs.complete_at(at, OsStr::new(current));
            found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };
        assert!(names(0, "tru").contains(&"true".to_owned()));
        assert!(names(0, "/usr/bin/tru").contains(&"/usr/bin/true".to_owned()));
        assert!(names(1, "tru").iter().all(|name| name != "true"));
    }
}
