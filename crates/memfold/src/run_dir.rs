//! The directory of a run, for as long as its launcher lives.

use crate::directory::Directory;
use crate::pages;
use crate::process::Nested;
use crate::runtime::{self, usable_base};
use anyhow::anyhow;
use memfold_sys::Errno;
use nix::fcntl::Flock;
use std::fs::File;
use std::io;
use std::path::Path;

/// How often it is made anew, each time under another name.
const TRIES: usize = 16;

/// The directory of one run, open for the processes of that run.
#[derive(Debug)]
pub struct RunDir {
    dir: Directory,
    /// Says that the launcher runs. `None` where the file system has no locks; then its id does.
    lock: Option<Flock<File>>,
}

impl RunDir {
    /// Makes a directory of its own for a run.
    ///
    /// # Errors
    /// No base directory can be made or trusted.
    pub fn create() -> anyhow::Result<RunDir> {
        for _ in 0..TRIES {
            let base = usable_base()?;
            match base.make_run() {
                Ok(run) => {
                    if let Some(run) = RunDir::keep(Directory::of(run.dir, run.path.as_str().into())?) {
                        return Ok(run);
                    }
                }
                Err(Errno(libc::ENOENT)) => {}
                Err(Errno(error)) => {
                    let error = io::Error::from_raw_os_error(error);
                    return Err(anyhow!("cannot make a directory in {:?}: {error}", base.path));
                }
            }
        }
        Err(anyhow!("what is made in memfold's directory for control pages is removed at once, {TRIES} times in a row"))
    }

    /// Marks a new directory as in use. `None` if it is gone: until it is marked, who clears up in another PID namespace takes it for left
    /// over.
    fn keep(dir: Directory) -> Option<RunDir> {
        let lock = dir.lock_shared();
        dir.is_there().then_some(RunDir { dir, lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for RunDir {
    /// Removes the directory, and by root those of processes that have become other users, unless processes are left that still use it.
    fn drop(&mut self) {
        let elsewhere = runtime::elsewhere(self.path());
        let all = || elsewhere.iter().map(|dir| &**dir).chain([&self.dir]);
        let mut nested = Nested::default();
        all().for_each(|dir| pages::tidy(dir, &mut nested));
        drop(self.lock.take());
        all().for_each(pages::remove_unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn new(base: &tempfile::TempDir) -> Directory {
        let path = base.path().join("run-1-1-1");
        std::fs::create_dir(&path).unwrap();
        Directory::hold(&path).unwrap()
    }

    #[test]
    fn a_directory_that_is_cleared_away_before_it_is_marked_is_not_kept() {
        let base = tempfile::tempdir().unwrap();
        let dir = new(&base);
        pages::remove_unused(&dir);
        assert!(RunDir::keep(dir).is_none());
    }

    #[test]
    fn who_clears_up_and_who_marks_wait_for_each_other() {
        let base = tempfile::tempdir().unwrap();
        let dir = new(&base);
        let kept = RunDir::keep(new_view(&dir)).unwrap();
        pages::remove_unused(&dir);
        assert!(dir.is_there(), "it is in use");
        drop(kept);
        assert!(!dir.is_there());
        // Marked while somebody is about to remove it.
        let dir = new(&base);
        let clearing = dir.lock_alone().unwrap();
        let (sender, done) = mpsc::channel();
        let view = new_view(&dir);
        let marks = std::thread::spawn(move || sender.send(RunDir::keep(view).is_some()));
        assert!(done.recv_timeout(std::time::Duration::from_millis(100)).is_err(), "it does not wait");
        std::fs::remove_dir(dir.path()).unwrap();
        drop(clearing);
        assert!(!done.recv().unwrap(), "it was kept");
        marks.join().unwrap().unwrap();
    }

    fn new_view(dir: &Directory) -> Directory {
        Directory::hold(dir.path()).unwrap()
    }
}
