//! How an arm of an experiment starts a program: plainly, with the library as its allocator, or folded.
//!
//! What it is not: `memfold run`. There are no signals, summaries or checks of the program here; an arm must
//! differ from its neighbour in the environment variables that it names and in nothing else.
//!
//! Invariants: a plain arm inherits no variable of memfold's and no preloaded library from the caller.

use anyhow::{Context, Result};
use memfold_pager::config::Setting;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Starts programs with the pager on; each process keeps its control page in [`Folding::control_dir`].
#[derive(Debug)]
pub struct Folding {
    library: PathBuf,
    directory: TempDir,
    variables: Vec<(OsString, OsString)>,
}

impl Folding {
    /// With the pager's default settings.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn new(library: &Path) -> Result<Folding> {
        let directory = tempfile::Builder::new()
            .prefix("memfold-control-")
            .tempdir()
            .context("cannot make a directory for control pages")?;
        Ok(Folding { library: library.to_owned(), directory, variables: Vec::new() })
    }

    /// Changes a setting; `value` as its environment variable takes it (`20ms`, `64M`, `100%`).
    pub fn set(self, setting: Setting, value: &str) -> Folding {
        self.variable(setting.variable(), value)
    }

    /// Sets another environment variable of the program.
    pub fn variable(mut self, name: &str, value: &str) -> Folding {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Evicts nothing by itself, everything when asked, and never for the sake of the stall budget: what an
    /// experiment wants that decides itself when pages go.
    pub fn on_request(self) -> Folding {
        self.set(Setting::StartAt, "0")
            .set(Setting::ColdAge, "1d")
            .set(Setting::RecompressAge, "1d")
            .set(Setting::MaxStall, "100%")
            .set(Setting::MaxCpu, "100%")
    }

    /// Where the control pages are.
    pub fn control_dir(&self) -> &Path {
        self.directory.path()
    }

    /// Makes `command` start its program folded.
    pub fn apply(&self, command: &mut Command) {
        preload(command, &self.library);
        command.env("MEMFOLD_PAGER", "on").env("MEMFOLD_CONTROL_DIR", self.control_dir());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

/// Makes `command` start its program with the allocator in `library`, and without a pager.
pub fn preload(command: &mut Command, library: &Path) {
    plain(command);
    command.env("LD_PRELOAD", library).env("MEMFOLD_PAGER", "off");
}

/// Makes `command` start its program as if memfold were not there.
pub fn plain(command: &mut Command) {
    command.env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEMFOLD_") {
            command.env_remove(name);
        }
    }
}

/// Empties the environment of `command`, but for the search path and a plain locale, so that nothing that the caller has
/// set reaches the program.
pub fn clean(command: &mut Command) {
    command.env_clear().env("LC_ALL", "C");
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
}
