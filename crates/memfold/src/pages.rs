//! Control pages on disk: which of them belong to running processes, which this user may see, and which are left over.
//!
//! A page is named by its process's id, `PID`, or by `PID@NAMESPACE` where the process is in another PID namespace than the launcher
//! whose directory it is in. A process that lives in a namespace beside or above ours is not to be seen: its page is left alone for
//! as long as its file is locked, which it is while a process has it mapped.
//!
//! Invariants: nothing is removed but what is this user's own: pages, and directories of runs, whose processes are gone. Of another
//! user's directory, which only root comes to see, every file is a regular one of that user's, and its process runs with that user's
//! rights.

use crate::control::Snapshot;
use crate::process::{self, Nested};
use crate::runtime;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that tells a process where its page is to be.
pub const VARIABLE: &str = "MEMFOLD_CONTROL_DIR";

/// The control page of a running process.
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// What it says.
    pub page: Snapshot,
    /// The process, by the id that it has in our PID namespace; the page has the one that it knows itself.
    pub pid: u32,
}

/// What a page's file is named by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    /// The process's id in its own PID namespace.
    pub pid: u32,
    /// The number of that, unless it is the launcher's.
    pub namespace: Option<u64>,
}

impl Name {
    /// From the path of a page; `None` for any other file.
    pub fn of(path: &Path) -> Option<Name> {
        let name = path.file_name()?.to_str()?;
        let (pid, namespace) = name.split_once('@').map_or((name, None), |(pid, number)| (pid, Some(number)));
        let namespace = namespace.map(str::parse).transpose().ok()?;
        Some(Name { pid: pid.parse().ok()?, namespace })
    }

    /// The process's id in our namespace, if the launcher is in ours; `None` if there is no such process.
    pub fn resolve(self, nested: &mut Nested) -> Option<u32> {
        match self.namespace.filter(|&number| process::namespace() != Some(number)) {
            Some(number) => nested.find(number, self.pid),
            None => Some(self.pid),
        }
    }
}

/// What is known of the process that made a page.
enum Life {
    /// It runs, with this id in our namespace.
    Here(u32),
    /// It is in a namespace that we cannot see.
    Elsewhere,
    /// It has ended.
    Gone,
}

/// The pages of this user's running processes, by process id. What is left over is removed on the way, with the directories of runs
/// that left nothing else.
pub fn running() -> Vec<Found> {
    let mut nested = Nested::default();
    let mut found = Vec::new();
    for run in runtime::runs() {
        tidy(&run, &mut nested);
        found.extend(in_directory(&run, &mut nested));
        if !runtime::launcher_runs(&run) {
            remove_unused(&run);
        }
    }
    sorted(found)
}

/// Those and all others that this user may see, wherever they lie: for root everybody's.
pub fn visible() -> Vec<Found> {
    let mut found = running();
    let mut nested = Nested::default();
    let mut seen: HashSet<(u64, u64)> = runtime::runs().iter().filter_map(|run| identity(run)).collect();
    for pid in process::all() {
        let Some(dir) = directory_of(pid) else { continue };
        if identity(&dir).is_some_and(|identity| seen.insert(identity)) {
            found.extend(in_directory(&dir, &mut nested));
        }
    }
    if geteuid().is_root() {
        for run in runtime::runs_of_others() {
            if identity(&run).is_some_and(|identity| seen.insert(identity)) {
                found.extend(in_directory(&run, &mut nested));
            }
        }
    }
    sorted(found)
}

fn sorted(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by_key(|found| found.pid);
    found
}

/// The directory in which a process was told to put its page: that of the page that it has mapped, its own or that of the process
/// that forked it; else what its environment says, which a program may overwrite with its title, as redis does. `None` if it was
/// told nothing.
pub fn told(pid: u32) -> Option<PathBuf> {
    let mapped = process::mapped(pid).into_iter().find(|path| Name::of(path).is_some() && is_of_run(path));
    let mapped = mapped.and_then(|page| page.parent().map(Path::to_owned));
    let variable = || process::variable(pid, VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    mapped.or_else(variable)
}

fn is_of_run(page: &Path) -> bool {
    page.parent().is_some_and(|dir| runtime::launcher_of(dir).is_some())
}

/// The directory in which the page of a process is to be found from here; `None` if there is none, or none that may be trusted.
fn directory_of(pid: u32) -> Option<PathBuf> {
    let told = told(pid)?;
    let mounts = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|link| link.ino());
    let dir = match mounts("self") == mounts(&pid.to_string()) {
        true => told,
        false => Path::new(&format!("/proc/{pid}/root")).join(told.strip_prefix("/").ok()?),
    };
    let owner = fs::symlink_metadata(&dir).ok()?.uid();
    let trusted = owner == geteuid().as_raw() || process::users(pid).contains(&owner);
    (trusted && runtime::check_for(&dir, owner).is_ok()).then_some(dir)
}

fn identity(dir: &Path) -> Option<(u64, u64)> {
    fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The pages of running processes in a directory.
fn in_directory(run: &Path, nested: &mut Nested) -> Vec<Found> {
    let Ok(dir) = fs::symlink_metadata(run) else { return Vec::new() };
    let mut found = Vec::new();
    for path in runtime::entries(run) {
        let (Some(name), Ok(page)) = (Name::of(&path), Snapshot::read(&path)) else { continue };
        let Life::Here(pid) = life(run, name, page.started_ns, nested) else { continue };
        // Of another user's making it may say anything.
        let owner = dir.uid();
        let honest = owner == geteuid().as_raw() || owner == 0 || process::users(pid).contains(&owner);
        // A process that has executed a program without the library has its number still.
        if honest && name.pid == page.pid && is_locked(&path) != Some(false) {
            found.push(Found { path, page, pid });
        }
    }
    found
}

fn life(run: &Path, name: Name, started_ns: u64, nested: &mut Nested) -> Life {
    let ours = process::namespace();
    let launcher = runtime::namespace_of(run).or(ours);
    let pid = match name.namespace.or(launcher) {
        number if number == ours => Some(name.pid),
        Some(number) => nested.find(number, name.pid),
        None => None,
    };
    match pid {
        Some(pid) if process::made_page(pid, started_ns) => Life::Here(pid),
        // What a run in our namespace starts is in ours, or below it.
        None if launcher != ours => Life::Elsewhere,
        _ => Life::Gone,
    }
}

/// Whether some process has the file locked: a page that it has mapped, or the directory of a launcher that runs. `None` where the
/// file system does not tell.
pub fn is_locked(path: &Path) -> Option<bool> {
    let mut open = OpenOptions::new();
    let file = open.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Some(false),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Some(true),
        Err(_) => None,
    }
}

/// A page whose process is gone and that its forked children still have mapped.
#[derive(Debug)]
pub struct Inherited(File);

impl Inherited {
    /// The page at `path`, if some process still has it mapped.
    pub fn look(path: &Path) -> Option<Inherited> {
        Inherited(File::open(path).ok()?).still()
    }

    /// The same later; the file may have lost its name.
    pub fn still(self) -> Option<Inherited> {
        match Flock::lock(self.0, FlockArg::LockExclusiveNonblock) {
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => Some(Inherited(file)),
            _ => None,
        }
    }
}

/// Marks a file or directory as one that is in use, for as long as what is returned is kept.
pub fn lock_shared(path: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(path).ok()?, FlockArg::LockSharedNonblock).ok()
}

/// Removes the pages in a run's directory whose process is gone.
pub fn tidy(run: &Path, nested: &mut Nested) {
    for path in runtime::entries(run) {
        let Some(name) = Name::of(&path) else { continue };
        // One that cannot be read is of another version: old enough for any process with its number.
        let started_ns = Snapshot::read(&path).map_or(u64::MAX, |page| page.started_ns);
        let in_use = match life(run, name, started_ns, nested) {
            Life::Here(_) => true,
            Life::Elsewhere => is_locked(&path) != Some(false),
            Life::Gone => false,
        };
        if !in_use {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes a run's directory, with what the library noted there for its processes to share, unless a page
/// is left in it.
pub fn remove_unused(run: &Path) {
    let left = runtime::entries(run);
    if left.iter().all(|path| Name::of(path).is_none()) {
        // Plain files only, and the directory only once it is empty: what is not memfold's stays.
        for path in left {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fixture;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_page_is_named_by_process_and_namespace() {
        assert_eq!(Name::of(Path::new("/x/7")), Some(Name { pid: 7, namespace: None }));
        assert_eq!(Name::of(Path::new("/x/7@99")), Some(Name { pid: 7, namespace: Some(99) }));
        for other in ["/x/notice", "/x/new-7", "/x/7@", "/x/@9", "/x/7@9@9", "/x/new-7@9"] {
            assert_eq!(Name::of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn the_page_of_a_process_that_is_gone_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("4194303");
        fs::write(&gone, b"").unwrap();
        let mine = dir.path().join(std::process::id().to_string());
        fs::write(&mine, b"").unwrap();
        tidy(dir.path(), &mut Nested::default());
        assert!(!gone.exists() && mine.exists());
    }

    #[test]
    fn a_page_from_a_namespace_that_cannot_be_seen_stays_while_it_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run-7-ff-1");
        fs::create_dir(&run).unwrap();
        // The number is that of a process here, which is not the one meant.
        let page = run.join(std::process::id().to_string());
        fixture::write(&page, |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.started_ns.store(sys::time::now().0, Relaxed);
        });
        let locked = Flock::lock(File::open(&page).unwrap(), FlockArg::LockSharedNonblock).unwrap();
        let mut nested = Nested::default();
        tidy(&run, &mut nested);
        assert!(page.exists() && in_directory(&run, &mut nested).is_empty());
        drop(locked);
        tidy(&run, &mut nested);
        assert!(!page.exists());
    }

    #[test]
    fn a_page_that_no_process_has_mapped_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join(std::process::id().to_string());
        fixture::write(&page, |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.started_ns.store(sys::time::now().0, Relaxed);
        });
        let found = || in_directory(dir.path(), &mut Nested::default()).len();
        assert_eq!(found(), 0);
        let _locked = Flock::lock(File::open(&page).unwrap(), FlockArg::LockSharedNonblock).unwrap();
        assert_eq!(found(), 1);
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
        tidy(&run, &mut Nested::default());
        remove_unused(&run);
        assert!(!run.exists());
    }
}
