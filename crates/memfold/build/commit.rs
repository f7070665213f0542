//! The commit of a source tree: what git says of it, and which files change when that changes.
//!
//! What it is not: part of the executable. The build script asks, and a test of the crate.
//!
//! Invariants: a tree that is no working copy of its own, such as an unpacked archive, has no commit, also where a
//! directory above it has one; git is asked about this tree whatever its variables in the environment name.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What an executable is made of; what else a tree holds may change without it.
const SOURCES: [&str; 3] = ["crates", "Cargo.toml", "Cargo.lock"];

/// The commit of the tree at `root`, with `-dirty` where the sources in it are others; `None` where it has none or there is
/// no git.
pub fn of(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let head = git(root, &["rev-parse", "--verify", "HEAD"])?;
    let changes = git(root, &[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    Some(if changes.is_empty() { head } else { format!("{head}-dirty") })
}

/// The files and directories of which one changes, by its time, when [`of`] gives something else.
pub fn watched(root: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = SOURCES.iter().map(|name| root.join(name)).collect();
    if of(root).is_some() {
        let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
        // A branch may have a file of its own or be one of many in `packed-refs`; the log notes every move of either.
        let names = ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
        let in_git = |name| git(root, &["rev-parse", "--git-path", name]).map(|path| root.join(path));
        paths.extend(names.filter_map(in_git));
    }
    // Cargo takes a path that is not there for one that has changed, each time.
    paths.retain(|path| path.exists());
    paths
}

/// What git prints for these arguments; `None` if it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Reading must not write: a refreshed index would look like a change.
    command.arg("--no-optional-locks").arg("-C").arg(root).args(arguments);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"] {
        command.env_remove(name);
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
