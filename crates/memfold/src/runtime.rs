//! The directories that hold control pages.
//!
//! `BASE/run-PID-TIME-NAMESPACE/PID`: one directory for each `memfold run`, one file in it for each folded process. Where `BASE` is
//! and whether it may be used says [`memfold_pager::base`]. The number of the launcher's PID
//! namespace is part of the name because containers that share a base have the same process ids.
//!
//! Invariants: a directory that is used is held open and that of one user alone, whom others cannot lead elsewhere,
//! so that no other user can put a page there or read one. The launcher has its directory locked while it runs (flock(2)).

use crate::directory::Directory;
use crate::exit;
use crate::process;
use anyhow::anyhow;
use memfold_pager::base::{Base, Environment, Refused};
use memfold_sys::dir::Fault;
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The variable that names the base directory.
pub const VARIABLE: &str = "MEMFOLD_RUNTIME_DIR";

/// The directories of this user's runs.
pub fn runs() -> Vec<Arc<Directory>> {
    let (named, session) = (variable(VARIABLE), variable("XDG_RUNTIME_DIR"));
    let mut found: Vec<Arc<Directory>> = Vec::new();
    Base::each(Environment { named: named.as_deref(), session: session.as_deref() }, |base| {
        let Ok(base) = Directory::of(base.dir, base.path.as_str().into()) else { return };
        for run in runs_in(&base) {
            if found.iter().all(|other| other.identity() != run.identity()) {
                found.push(run);
            }
        }
    });
    found
}

/// The directories of other users' runs in the usual places, for root.
pub fn runs_of_others() -> Vec<Arc<Directory>> {
    bases_of_others().iter().flat_map(runs_in).collect()
}

/// Where the processes of a run have their pages that have become other users. None but for root, whose processes alone can.
pub fn elsewhere(run: &Path) -> Vec<Arc<Directory>> {
    let name = run.file_name().and_then(|name| name.to_str()).filter(|_| geteuid().is_root());
    let Some(name) = name else { return Vec::new() };
    let runs = bases_of_others().into_iter().filter_map(|base| own_in(&base, name));
    runs.filter(|other| other.path() != run).collect()
}

/// The directories in the usual places that other users have for their runs, and nobody else can look into or change.
fn bases_of_others() -> Vec<Directory> {
    let sessions = entries(Path::new("/run/user")).into_iter().map(|dir| dir.join("memfold"));
    let temporary = entries(Path::new("/tmp"))
        .into_iter()
        .filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("memfold-")));
    let bases = sessions.chain(temporary).filter_map(|base| Directory::hold(&base).ok());
    bases.filter(|base| base.check().is_ok()).collect()
}

/// The directories of runs in a base that nobody but its owner can look into or change.
fn runs_in(base: &Directory) -> Vec<Arc<Directory>> {
    let names = base.names().into_iter().filter(|name| launcher_of(Path::new(name)).is_some());
    names.filter_map(|name| own_in(base, &name)).collect()
}

/// The directory in a base that is of the same owner.
fn own_in(base: &Directory, name: &str) -> Option<Arc<Directory>> {
    base.enter(name).ok().filter(|run| run.owner() == base.owner()).map(Arc::new)
}

/// The whole path of a daemon's socket, the one of this user's usual daemon if none is given; the same path for the same
/// socket, however it was written.
///
/// # Errors
/// It is longer than the path of a socket can be, or not UTF-8; or none is given and there is no directory for it.
pub fn socket(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    /// The longest path of a socket, without its end (unix(7)).
    const MOST: usize = 107;
    let path = match given {
        Some(path) => std::path::absolute(path)
            .map_err(|error| exit::usage(format!("the path of a socket is needed: {error}")))?,
        None => Path::new(usable_base()?.path.as_str()).join("daemon.sock"),
    };
    let whole = match (path.parent().and_then(|dir| dir.canonicalize().ok()), path.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => path,
    };
    match whole.to_str() {
        Some(text) if text.len() <= MOST => Ok(whole),
        Some(_) => {
            Err(exit::usage(format!("{}: the path of a socket has {MOST} bytes at most", whole.display())))
        }
        None => Err(exit::usage(format!("{}: the path of a socket must be UTF-8", whole.display()))),
    }
}

/// The entries of a directory, none if it cannot be read.
pub fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

/// Process and time of the launcher that made `run-PID-TIME` or `run-PID-TIME-NAMESPACE`; `None` for any other name, which is
/// not memfold's to look into.
pub fn launcher_of(run: &Path) -> Option<(u32, u64)> {
    let (pid, rest) = run.file_name()?.to_str()?.strip_prefix("run-")?.split_once('-')?;
    let (made, namespace) = rest.split_once('-').map_or((rest, "0"), |parts| parts);
    namespace.parse::<u64>().ok()?;
    Some((pid.parse().ok()?, u64::from_str_radix(made, 16).ok()?))
}

/// The number of the PID namespace in which the processes of a run have the ids that their pages are named by; `None` where the
/// directory does not tell, as one that somebody else made.
pub fn namespace_of(run: &Path) -> Option<u64> {
    memfold_pager::control_file::namespace_of_dir(run.to_str()?)
}

/// Whether the launcher that made the directory is still there.
pub fn launcher_runs(run: &Directory) -> bool {
    runs_by(run.path(), run.is_locked())
}

fn runs_by(run: &Path, is_locked: Option<bool>) -> bool {
    let is_ours = namespace_of(run).is_none_or(|number| process::namespace() == Some(number));
    match is_locked {
        Some(true) => true,
        Some(false) if !is_ours => false,
        // The usual id will do: a launcher without locks, or of an earlier version.
        _ => is_ours && launcher_of(run).is_some_and(|(pid, made)| process::made_page(pid, made)),
    }
}

/// A variable that is set and not empty. What is not UTF-8, as the library wants paths, names no directory that is there.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// The directory that holds those of runs, made if need be.
///
/// # Errors
/// No such directory can be made or trusted.
pub fn usable_base() -> anyhow::Result<Base> {
    let (named, session) = (variable(VARIABLE), variable("XDG_RUNTIME_DIR"));
    Base::usable(Environment { named: named.as_deref(), session: session.as_deref() })
        .map_err(|refused| explain(&refused))
}

/// What speaks against a directory, and what to do.
fn explain(refused: &Refused) -> anyhow::Error {
    let dir = Path::new(refused.path.as_str());
    // As the kernel goes up, past links.
    let whole =
        dir.canonicalize().or_else(|_| match (dir.parent().map(Path::canonicalize), dir.file_name()) {
            (Some(Ok(parent)), Some(name)) => Ok(parent.join(name)),
            _ => std::path::absolute(dir),
        });
    let whole = whole.unwrap_or(dir.to_owned());
    let at = |up: usize| match up {
        0 => dir.display().to_string(),
        up => whole.ancestors().nth(up).unwrap_or(dir).display().to_string(),
    };
    let remedy = format!("name a directory of your own in {VARIABLE}");
    match refused.fault {
        Fault::Kernel(error) => anyhow::Error::new(std::io::Error::from_raw_os_error(error.0))
            .context(format!("cannot use {}", at(0))),
        Fault::NotDirectory => anyhow!("{} is not a directory; {remedy}", at(0)),
        Fault::Theirs { uid, up } => anyhow!("{} belongs to user {uid}; {remedy}", at(up)),
        Fault::Open { mode, up: 0 } => {
            anyhow!("{} is open to others (mode {:o}); chmod 700 it or {remedy}", at(0), mode & 0o777)
        }
        Fault::Open { mode, up } => anyhow!(
            "{} is open to others (mode {mode:o}), who could swap {}; {remedy}",
            at(up),
            dir.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_pager::file_path::FilePath;

    #[test]
    fn what_speaks_against_a_directory_is_said_of_the_one_that_is_meant() {
        let say = |fault| {
            let path = FilePath::of("/usr/bin/run").unwrap();
            explain(&Refused { path, fault }).to_string()
        };
        assert!(say(Fault::NotDirectory)
            .starts_with("/usr/bin/run is not a directory; name a directory of your own in MEMFOLD"));
        assert!(say(Fault::Theirs { uid: 7, up: 2 }).starts_with("/usr belongs to user 7"));
        assert!(say(Fault::Open { mode: 0o755, up: 0 })
            .contains("/usr/bin/run is open to others (mode 755); chmod 700 it"));
        assert!(say(Fault::Open { mode: 0o777, up: 1 })
            .contains("/usr/bin is open to others (mode 777), who could swap /usr/bin/run"));
        assert!(say(Fault::Kernel(memfold_sys::Errno(libc::EROFS))).contains("cannot use /usr/bin/run"));
    }

    #[test]
    fn the_directory_of_a_running_launcher_is_told_from_a_stale_one() {
        let now = memfold_sys::time::now().0;
        let launcher_runs = |run: &str| runs_by(Path::new(run), None);
        assert!(launcher_runs(&format!("/x/run-{}-{now:x}", std::process::id())));
        assert!(!launcher_runs("/x/run-4194303-ffff"));
        assert_eq!(launcher_of(Path::new("/x/run-7-ff")), Some((7, 255)));
        assert_eq!(launcher_of(Path::new("/x/run-7-ff-99")), Some((7, 255)));
        assert_eq!(namespace_of(Path::new("/x/run-7-ff-99")), Some(99));
        assert_eq!(namespace_of(Path::new("/x/run-7-ff")), None);
        // The number of a process here means another one there.
        assert!(!launcher_runs(&format!("/x/run-{}-{now:x}-1", std::process::id())));
        for other in ["/x/Documents", "/x/run-7", "/x/run-a-b", "/x/run--", "/x/run-7-ff-x"] {
            assert_eq!(launcher_of(Path::new(other)), None, "{other}");
        }
    }
}
