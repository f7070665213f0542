//! The directory of a run, for as long as its launcher lives.

use crate::directory::Directory;
use crate::pages;
use crate::process::Nested;
use crate::runtime::usable_base;
use anyhow::anyhow;
use nix::fcntl::Flock;
use std::fs::File;
use std::path::Path;

/// The directory of one run, open for the processes of that run.
#[derive(Debug)]
pub struct RunDir {
    dir: Directory,
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
        let run = base
            .make_run()
            .map_err(|error| anyhow!("cannot make a directory in {:?}: {error}", base.path))?;
        let dir = Directory::of(run.dir, run.path.as_str().into())?;
        let _lock = dir.lock_shared();
        Ok(RunDir { dir, _lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for RunDir {
    /// Removes the directory unless processes are left that still use it.
    fn drop(&mut self) {
        pages::tidy(&self.dir, &mut Nested::default());
        pages::remove_unused(&self.dir);
    }
}
