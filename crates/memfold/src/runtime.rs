//! The directories that hold control pages.
//!
//! `BASE/run-PID-TIME-NAMESPACE/PID`: one directory for each `memfold run`, one file in it for each folded process.
//! `BASE` is `$MEMFOLD_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/memfold`, else `/tmp/memfold-UID`. The number of the launcher's PID
//! namespace is part of the name because containers that share a base have the same process ids.
//!
//! Invariants: a directory that is used is the user's own and closed to everybody else (0700), and is no symbolic link,
//! so that no other user can put a page there or read one. The launcher has its directory locked while it runs (flock(2)).

use crate::exit;
use crate::pages;
use crate::process::{self, Nested};
use anyhow::{bail, Context};
use nix::fcntl::Flock;
use nix::unistd::getuid;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The variable that names the base directory.
pub const VARIABLE: &str = "MEMFOLD_RUNTIME_DIR";

/// The directory of one run, open for the processes of that run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Says that the launcher runs. `None` where the file system has no locks; then its id does.
    _lock: Option<Flock<File>>,
}

impl RunDir {
    /// Makes a directory of its own for a run.
    ///
    /// # Errors
    /// No base directory can be made or trusted.
    pub fn create() -> anyhow::Result<RunDir> {
        let base = usable_base()?;
        let namespace = process::namespace().map(|number| format!("-{number}")).unwrap_or_default();
        let (pid, now) = (std::process::id(), sys::time::now().0);
        let path = base.join(format!("run-{pid}-{now:x}{namespace}"));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let _lock = pages::lock_shared(&path);
        Ok(RunDir { path, _lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    /// Removes the directory unless processes are left that still use it.
    fn drop(&mut self) {
        pages::tidy(&self.path, &mut Nested::default());
        pages::remove_unused(&self.path);
    }
}

/// The directories of this user's runs.
pub fn runs() -> Vec<PathBuf> {
    let bases = candidates().into_iter().filter(|base| check(base).is_ok());
    bases.flat_map(|base| entries(&base)).filter(|run| launcher_of(run).is_some()).collect()
}

/// The directories of other users' runs in the usual places, for root.
pub fn runs_of_others() -> Vec<PathBuf> {
    let sessions = entries(Path::new("/run/user")).into_iter().map(|dir| dir.join("memfold"));
    let temporary = entries(Path::new("/tmp"))
        .into_iter()
        .filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("memfold-")));
    let bases = sessions
        .chain(temporary)
        .filter(|base| fs::symlink_metadata(base).is_ok_and(|meta| check_for(base, meta.uid()).is_ok()));
    let runs = bases.flat_map(|base| entries(&base)).filter(|run| launcher_of(run).is_some());
    runs.filter(|run| fs::symlink_metadata(run).is_ok_and(|meta| check_for(run, meta.uid()).is_ok()))
        .collect()
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
        None => usable_base()?.join("daemon.sock"),
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
    pager::control_file::namespace_of_dir(run.to_str()?)
}

/// Whether the launcher that made the directory is still there.
pub fn launcher_runs(run: &Path) -> bool {
    let is_ours = namespace_of(run).is_none_or(|number| process::namespace() == Some(number));
    match pages::is_locked(run) {
        Some(true) => true,
        Some(false) if !is_ours => false,
        // The usual id will do: a launcher without locks, or of an earlier version.
        _ => is_ours && launcher_of(run).is_some_and(|(pid, made)| process::made_page(pid, made)),
    }
}

fn candidates() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let tmp = PathBuf::from(format!("/tmp/memfold-{}", getuid()));
    let mut all: Vec<PathBuf> = variable(VARIABLE).into_iter().collect();
    all.extend(variable("XDG_RUNTIME_DIR").map(|dir| dir.join("memfold")));
    all.push(tmp);
    all
}

/// The directory that holds those of runs, made if need be.
///
/// # Errors
/// No such directory can be made or trusted.
pub fn usable_base() -> anyhow::Result<PathBuf> {
    let mut last = None;
    for base in candidates() {
        let _ = DirBuilder::new().mode(0o700).create(&base);
        match check(&base) {
            Ok(()) => return Ok(base),
            Err(error) => last = Some(error),
        }
        if std::env::var_os(VARIABLE).is_some_and(|v| base == *v) {
            break;
        }
    }
    Err(last.expect("there is always a candidate"))
}

fn check(dir: &Path) -> anyhow::Result<()> {
    check_for(dir, getuid().as_raw())
}

/// Whether the directory may be trusted to be that of the user `owner`.
///
/// # Errors
/// It is none, belongs to another user, or is open to others.
pub fn check_for(dir: &Path, owner: u32) -> anyhow::Result<()> {
    let meta = fs::symlink_metadata(dir).with_context(|| format!("cannot use {}", dir.display()))?;
    let remedy = format!("name a directory of your own in {VARIABLE}");
    if !meta.is_dir() {
        bail!("{} is not a directory; {remedy}", dir.display());
    }
    if meta.uid() != owner {
        bail!("{} belongs to user {}; {remedy}", dir.display(), meta.uid());
    }
    if meta.mode() & 0o077 != 0 {
        bail!(
            "{} is open to others (mode {:o}); chmod 700 it or {remedy}",
            dir.display(),
            meta.mode() & 0o777
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("mode 755"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        check(dir.path()).unwrap();
    }

    #[test]
    fn a_symbolic_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(check(&link).unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn the_directory_of_a_running_launcher_is_told_from_a_stale_one() {
        let now = sys::time::now().0;
        assert!(launcher_runs(Path::new(&format!("/x/run-{}-{now:x}", std::process::id()))));
        assert!(!launcher_runs(Path::new("/x/run-4194303-ffff")));
        assert_eq!(launcher_of(Path::new("/x/run-7-ff")), Some((7, 255)));
        assert_eq!(launcher_of(Path::new("/x/run-7-ff-99")), Some((7, 255)));
        assert_eq!(namespace_of(Path::new("/x/run-7-ff-99")), Some(99));
        assert_eq!(namespace_of(Path::new("/x/run-7-ff")), None);
        // The number of a process here means another one there.
        assert!(!launcher_runs(Path::new(&format!("/x/run-{}-{now:x}-1", std::process::id()))));
        for other in ["/x/Documents", "/x/run-7", "/x/run-a-b", "/x/run--", "/x/run-7-ff-x"] {
            assert_eq!(launcher_of(Path::new(other)), None, "{other}");
        }
    }
}
