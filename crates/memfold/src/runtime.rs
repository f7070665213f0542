//! The directories that hold control pages.
//!
//! `BASE/run-PID-TIME/PID`: one directory for each `memfold run`, one file in it for each folded process.
//! `BASE` is `$MEMFOLD_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/memfold`, else `/tmp/memfold-UID`.
//!
//! Invariants: nothing is removed but pages, and directories of runs, whose processes are gone. A
//! directory that is used is the user's own and closed to everybody else (0700), and is no symbolic link,
//! so that no other user can put a page there or read one.

use crate::control::Snapshot;
use crate::{exit, process};
use anyhow::{bail, Context};
use nix::unistd::getuid;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The variable that names the base directory.
pub const VARIABLE: &str = "MEMFOLD_RUNTIME_DIR";

/// The directory of one run, open for the processes of that run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes a directory of its own for a run.
    ///
    /// # Errors
    /// No base directory can be made or trusted.
    pub fn create() -> anyhow::Result<RunDir> {
        let base = usable_base()?;
        let path = base.join(format!("run-{}-{:x}", std::process::id(), sys::time::now().0));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(RunDir { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    /// Removes the directory unless processes are left that still use it.
    fn drop(&mut self) {
        remove_stale_in(&self.path);
        remove_unused(&self.path);
    }
}

/// A control page found on disk.
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// What it says.
    pub page: Snapshot,
}

/// The pages of all processes of this user that run now, by process id. Pages of processes that are gone
/// are removed on the way, with the directories of runs that left nothing else.
pub fn running() -> Vec<Found> {
    let mut found = Vec::new();
    for base in candidates().into_iter().filter(|b| check(b).is_ok()) {
        for run in entries(&base).into_iter().filter(|run| launcher_of(run).is_some()) {
            remove_stale_in(&run);
            found.extend(
                entries(&run)
                    .into_iter()
                    .filter_map(|path| Snapshot::read(&path).ok().map(|page| Found { path, page })),
            );
            if !launcher_runs(&run) {
                remove_unused(&run);
            }
        }
    }
    found.sort_by_key(|f| f.page.pid);
    found
}

/// Removes the pages in a run's directory whose process is gone.
fn remove_stale_in(run: &Path) {
    for path in entries(run) {
        let Some(pid) = pid_of(&path) else { continue };
        let in_use = match Snapshot::read(&path) {
            Ok(page) => process::made_page(pid, page.started_ns),
            // A page that is being made.
            Err(_) => process::is_running(pid),
        };
        if !in_use {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes a run's directory, with what the library noted there for its processes to share, unless a page
/// is left in it.
fn remove_unused(run: &Path) {
    let left = entries(run);
    if left.iter().all(|path| pid_of(path).is_none()) {
        // Plain files only, and the directory only once it is empty: what is not memfold's stays.
        for path in left {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir(run);
    }
}

/// The process id that a page's file is named by.
pub fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
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

/// Process and time of the `memfold run` that made `run-PID-TIME`; `None` for any other name, which is not
/// memfold's to look into.
fn launcher_of(run: &Path) -> Option<(u32, u64)> {
    let (pid, made) = run.file_name()?.to_str()?.strip_prefix("run-")?.split_once('-')?;
    Some((pid.parse().ok()?, u64::from_str_radix(made, 16).ok()?))
}

/// Whether the `memfold run` that made the directory is still there.
fn launcher_runs(run: &Path) -> bool {
    launcher_of(run).is_some_and(|(pid, made)| process::made_page(pid, made))
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
    let meta = fs::symlink_metadata(dir).with_context(|| format!("cannot use {}", dir.display()))?;
    let remedy = format!("name a directory of your own in {VARIABLE}");
    if !meta.is_dir() {
        bail!("{} is not a directory; {remedy}", dir.display());
    }
    if meta.uid() != getuid().as_raw() {
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
    fn the_page_of_a_process_that_is_gone_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("4194303");
        fs::write(&gone, b"").unwrap();
        let mine = dir.path().join(std::process::id().to_string());
        fs::write(&mine, b"").unwrap();
        remove_stale_in(dir.path());
        assert!(!gone.exists() && mine.exists());
    }

    #[test]
    fn a_run_directory_goes_when_its_last_page_does() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run-1-1");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("notice"), b"").unwrap();
        fs::write(run.join("4194303"), b"").unwrap();
        remove_unused(&run);
        assert!(run.exists());
        remove_stale_in(&run);
        remove_unused(&run);
        assert!(!run.exists());
    }

    #[test]
    fn the_directory_of_a_running_launcher_is_told_from_a_stale_one() {
        let now = sys::time::now().0;
        assert!(launcher_runs(Path::new(&format!("/x/run-{}-{now:x}", std::process::id()))));
        assert!(!launcher_runs(Path::new("/x/run-4194303-ffff")));
        assert_eq!(launcher_of(Path::new("/x/run-7-ff")), Some((7, 255)));
        for other in ["/x/Documents", "/x/run-7", "/x/run-a-b", "/x/run--"] {
            assert_eq!(launcher_of(Path::new(other)), None, "{other}");
        }
    }
}
