//! The daemon arm: a daemon of its own for each run, and a worker that registers its memory and comes under it.
//!
//! What it is not: the daemon, which is `memfold daemon` of the executable that the experiment runs.

use crate::launch::plain;
use crate::process::threads;
use anyhow::{bail, Context, Result};
use memfold_pager::config::Setting;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running daemon; ended when dropped.
pub(super) struct Daemon {
    child: Child,
    /// Socket and control pages; goes with it.
    _directory: TempDir,
    run: PathBuf,
    socket: PathBuf,
    settings: Vec<(Setting, String)>,
}

impl Daemon {
    /// Starts one for a worker with these settings.
    pub(super) fn start(program: &Path, settings: Vec<(Setting, String)>) -> Result<Daemon> {
        let directory = tempfile::Builder::new().prefix("memfold-daemon-").tempdir()?;
        let socket = directory.path().join("daemon.sock");
        // By this name the daemon finds the worker's page in it.
        let name = format!("run-{}-{:x}", std::process::id(), memfold_sys::time::now().0);
        let run = directory.path().join(name);
        DirBuilder::new().mode(0o700).create(&run).with_context(|| run.display().to_string())?;
        let mut command = Command::new(program);
        plain(&mut command);
        command.env("MEMFOLD_RUNTIME_DIR", directory.path());
        command.args(["daemon", "--quiet", "--socket"]).arg(&socket).stdin(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot start {} daemon", program.display()))?;
        let mut daemon = Daemon { child, _directory: directory, run, socket, settings };
        let began = Instant::now();
        while UnixStream::connect(&daemon.socket).is_err() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("{} daemon ended with {status}", program.display());
            }
            if began.elapsed() > PATIENCE {
                bail!("{} daemon does not listen", program.display());
            }
            sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Makes `command` start a worker that registers its memory, under the daemon's budget.
    pub(super) fn apply(&self, command: &mut Command) {
        plain(command);
        command.env("MEMFOLD_DAEMON", &self.socket).env("MEMFOLD_CONTROL_DIR", self.control_dir());
        command.envs(self.settings.iter().map(|(setting, value)| (setting.variable(), value)));
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where the worker's control page is.
    pub(super) fn control_dir(&self) -> &Path {
        &self.run
    }

    /// CPU time that it has used, ns.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        Ok(threads(self.child.id())?.iter().map(|thread| thread.cpu_ns).sum())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Killed: it can be, at any time.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
