//! Control pages on disk: which of them belong to running processes, which this user may see, and which are left over.
//!
//! A page is named by its process's id, `PID`, or by `PID@NAMESPACE` where the process is in another PID namespace than the launcher
//! whose directory it is in. A process that lives in a namespace beside or above ours is not to be seen: its page is left alone for
//! as long as its file is locked, which it is while a process has it mapped.
//!
//! Invariants: nothing is removed but what is this user's own, or of this user's run: pages, and directories of runs, whose processes are gone. A directory is
//! held open while it is looked into, and every file in it is a regular one of its owner's. Of another
//! user's, which only root comes to see, the process runs with that user's rights.

use crate::directory::{is_mapped, open_file, Directory};
use crate::process::{self, Nested};
use crate::runtime;
use anyhow::Context;
use memfold_inspect::Snapshot;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

/// The variable that tells a process where its page is to be.
pub const VARIABLE: &str = "MEMFOLD_CONTROL_DIR";

/// The control page of a running process.
#[derive(Clone)]
pub struct Found {
    /// The file.
    pub file: PageFile,
    /// What it says.
    pub page: Snapshot,
    /// The process, by the id that it has in our PID namespace; the page has the one that it knows itself.
    pub pid: u32,
}

/// The file of a page, in a directory that is held open.
#[derive(Clone)]
pub struct PageFile {
    /// The directory.
    pub run: Arc<Directory>,
    /// Its name there.
    pub name: Name,
}

impl PageFile {
    /// Opens it to read and write.
    ///
    /// # Errors
    /// It is gone, or no longer a file of the directory's owner.
    pub fn open(&self) -> io::Result<File> {
        self.run.open(&self.name.to_string(), libc::O_RDWR)
    }

    /// Where it was.
    pub fn path(&self) -> PathBuf {
        self.run.path().join(self.name.to_string())
    }
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
        Name::parse(path.file_name()?.to_str()?)
    }

    /// From a file's name.
    pub fn parse(name: &str) -> Option<Name> {
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

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            Some(number) => write!(f, "{}@{number}", self.pid),
            None => self.pid.fmt(f),
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

/// What the page at a path says.
///
/// # Errors
/// The file is missing, no regular one, another user's, incomplete, or of another version of memfold.
pub fn snapshot(path: &Path) -> anyhow::Result<Snapshot> {
    let file = open_file(path, libc::O_RDONLY);
    let file = file.with_context(|| format!("cannot read the control page {}", path.display()))?;
    Snapshot::of_file(&file).with_context(|| path.display().to_string())
}

/// The pages of this user's running processes, by process id. What is left over is removed on the way, with the directories of runs
/// that left nothing else.
pub fn running() -> Vec<Found> {
    let mut nested = Nested::default();
    for run in runtime::runs() {
        tidy(&run, &mut nested);
        if !runtime::launcher_runs(&run) {
            remove_unused(&run);
        }
    }
    present()
}

/// The same, with nothing removed: for who may not see all of this user's processes, and would take some for gone.
pub fn present() -> Vec<Found> {
    let mut nested = Nested::default();
    sorted(runtime::runs().iter().flat_map(|run| in_directory(run, &mut nested)).collect())
}

/// Those and all others that this user may see, wherever they lie: for root everybody's.
pub fn visible() -> Vec<Found> {
    let mut found = running();
    let mut nested = Nested::default();
    let mut seen: HashSet<(u64, u64)> = runtime::runs().iter().map(|run| run.identity()).collect();
    for pid in process::all() {
        let Some(dir) = directory_of(pid) else { continue };
        if seen.insert(dir.identity()) {
            found.extend(in_directory(&dir, &mut nested));
        }
    }
    if geteuid().is_root() {
        for run in runtime::runs_of_others() {
            if seen.insert(run.identity()) {
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

/// Whether a process was told to put its page in the directory of this run, or, as another user, in one of the same name.
pub fn is_of(pid: u32, run: &Path) -> bool {
    told(pid).is_some_and(|told| told.file_name() == run.file_name())
}

fn is_of_run(page: &Path) -> bool {
    page.parent().is_some_and(|dir| runtime::launcher_of(dir).is_some())
}

/// The directory in which the page of a process is to be found from here; `None` if there is none, or none that may be trusted.
fn directory_of(pid: u32) -> Option<Arc<Directory>> {
    let told = told(pid)?;
    let mounts = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|link| link.ino());
    let dir = match mounts("self") == mounts(&pid.to_string()) {
        true => told,
        false => Path::new(&format!("/proc/{pid}/root")).join(told.strip_prefix("/").ok()?),
    };
    let dir = Directory::hold(&dir).ok()?;
    let trusted = dir.owner() == geteuid().as_raw() || process::users(pid).contains(&dir.owner());
    (trusted && dir.check().is_ok()).then(|| Arc::new(dir))
}

/// The pages of running processes in a directory.
fn in_directory(run: &Arc<Directory>, nested: &mut Nested) -> Vec<Found> {
    let mut found = Vec::new();
    for (name, file) in files(run) {
        let Ok(page) = Snapshot::of_file(&file) else { continue };
        let Life::Here(pid) = life(run.path(), name, page.started_ns, nested) else { continue };
        // Of another user's making it may say anything.
        let owner = run.owner();
        let honest = owner == geteuid().as_raw() || owner == 0 || process::users(pid).contains(&owner);
        // A process that has executed a program without the library has its number still.
        if honest && name.pid == page.pid && is_mapped(file) != Some(false) {
            found.push(Found { file: PageFile { run: run.clone(), name }, page, pid });
        }
    }
    found
}

/// The files in a directory that have the names of pages.
pub fn files(run: &Directory) -> impl Iterator<Item = (Name, File)> + '_ {
    let names = run.names().into_iter().filter_map(|name| Name::parse(&name));
    names.filter_map(|name| Some((name, run.open(&name.to_string(), libc::O_RDONLY).ok()?)))
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

/// A page whose process is gone and that its forked children still have mapped.
#[derive(Debug)]
pub struct Inherited(File);

impl Inherited {
    /// The page in this file, if some process still has it mapped.
    pub fn of(file: File) -> Option<Inherited> {
        Inherited(file).still()
    }

    /// The same later; the file may have lost its name.
    pub fn still(self) -> Option<Inherited> {
        match Flock::lock(self.0, FlockArg::LockExclusiveNonblock) {
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => Some(Inherited(file)),
            _ => None,
        }
    }
}

/// Removes the pages in a run's directory whose process is gone, and whatever else has their names.
pub fn tidy(run: &Directory, nested: &mut Nested) {
    for name in run.names().into_iter().filter_map(|name| Name::parse(&name)) {
        let file = run.open(&name.to_string(), libc::O_RDONLY).ok();
        // One that cannot be read is of another version: old enough for any process with its number.
        let started_ns = file
            .as_ref()
            .and_then(|file| Snapshot::of_file(file).ok())
            .map_or(u64::MAX, |page| page.started_ns);
        let in_use = match life(run.path(), name, started_ns, nested) {
            Life::Here(_) => true,
            Life::Elsewhere => file.and_then(is_mapped) != Some(false),
            Life::Gone => false,
        };
        if !in_use {
            run.remove(&name.to_string());
        }
    }
}

/// Removes a run's directory, with what the library noted there for its processes to share, unless a page
/// is left in it, or somebody has it marked. Who makes it his own meanwhile waits, and finds it gone.
pub fn remove_unused(run: &Directory) {
    let alone = run.lock_alone();
    if matches!(alone, Err(Errno::EWOULDBLOCK)) {
        return;
    }
    let left = run.names();
    if left.iter().all(|name| Name::parse(name).is_none()) {
        // Plain files only, and the directory only once it is empty: what is not memfold's stays.
        for name in left {
            run.remove(&name);
        }
        let _ = fs::remove_dir(run.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_inspect::fixture;
    use nix::fcntl::{Flock, FlockArg};
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
        tidy(&Directory::hold(dir.path()).unwrap(), &mut Nested::default());
        assert!(!gone.exists() && mine.exists());
    }

    #[test]
    fn a_page_from_a_namespace_that_cannot_be_seen_stays_while_it_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run-7-ff-1");
        fs::create_dir(&run).unwrap();
        let held = Arc::new(Directory::hold(&run).unwrap());
        // The number is that of a process here, which is not the one meant.
        let page = run.join(std::process::id().to_string());
        fixture::write(&page, |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.started_ns.store(memfold_sys::time::now().0, Relaxed);
        });
        let locked = Flock::lock(File::open(&page).unwrap(), FlockArg::LockSharedNonblock).unwrap();
        let mut nested = Nested::default();
        tidy(&held, &mut nested);
        assert!(page.exists() && in_directory(&held, &mut nested).is_empty());
        drop(locked);
        tidy(&held, &mut nested);
        assert!(!page.exists());
    }

    #[test]
    fn a_page_that_no_process_has_mapped_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join(std::process::id().to_string());
        fixture::write(&page, |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.started_ns.store(memfold_sys::time::now().0, Relaxed);
        });
        let found =
            || in_directory(&Arc::new(Directory::hold(dir.path()).unwrap()), &mut Nested::default()).len();
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
        let held = Directory::hold(&run).unwrap();
        remove_unused(&held);
        assert!(run.exists());
        tidy(&held, &mut Nested::default());
        remove_unused(&held);
        assert!(!run.exists());
    }
}
