//! The process beside a program that keeps its tier on the network (`memfold-depot`): started before the program, and again if it ends.
//!
//! What it is not: needed for the program's bytes by itself. They are on the engines, and whoever is started here finds them.
//!
//! Invariants: it has nothing of the terminal, so that a key that interrupts the program does not end it, and goes on when the launcher is gone, for as
//! long as a program needs it.

use super::supervise;
use crate::text;
use anyhow::{Context, Result};
use memfold_depot::engines::Config;
use memfold_pager::tier::choice::Choice;
use memfold_pager::tier::wire::SOCKET;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// It is not started again sooner than that after its start.
const APART: Duration = Duration::from_millis(200);

/// The process.
#[derive(Debug)]
pub struct Depot {
    child: Child,
    directory: PathBuf,
    tier: String,
    /// Whether its engines are nodes of a cluster, and on how many everything is kept.
    found: (bool, usize),
    started: Instant,
}

impl Depot {
    /// Starts one, if the tier is on the network. Its engines must be there now.
    ///
    /// # Errors
    /// They are not, or will not do, or it does not begin; each with the remedy.
    pub fn start(tier: &str, quiet: bool) -> Result<Option<Depot>> {
        let Ok(choice) = Choice::parse(tier) else { return Ok(None) };
        let Some(engines) = choice.engines() else { return Ok(None) };
        let config = Config::new(&engines, false).and_then(|mut config| config.check().map(|()| config));
        let config = config.with_context(|| choice.name().to_owned())?;
        if config.is_single() && engines.disk.is_none() && !quiet {
            text::say(format_args!(
                "what goes to {} is kept there alone: if that loses it, the program ends \
                 (a second engine behind a comma keeps a copy, and so does a disk: disk=/var/tmp)",
                choice.name()
            ));
        }
        let directory = tempfile::Builder::new()
            .prefix("memfold-tier-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .context("cannot make a directory for the tier")?
            .keep();
        let found = (config.is_cluster(), config.copies());
        let child = spawn(&directory, tier, found)?;
        let depot = Depot { child, directory, tier: tier.to_owned(), found, started: Instant::now() };
        while !depot.directory.join(SOCKET).exists() {
            anyhow::ensure!(depot.started.elapsed() < PATIENCE, "the process for the tier does not begin");
            sleep(Duration::from_millis(5));
        }
        Ok(Some(depot))
    }

    /// The directory of its socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts it again if it has ended.
    pub fn look_after(&mut self) {
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if ended && self.started.elapsed() >= APART {
            self.started = Instant::now();
            if let Ok(child) = spawn(&self.directory, &self.tier, self.found) {
                self.child = child;
            }
        }
    }
}

fn spawn(directory: &Path, tier: &str, (cluster, copies): (bool, usize)) -> Result<Child> {
    // The file that is being executed, also when its name is gone: there may be a newer version by now.
    let executable = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(executable.unwrap_or_else(|| "/proc/self/exe".into()));
    command.arg("depot").arg(directory).arg(tier).arg("--copies").arg(copies.to_string());
    if cluster {
        command.arg("--cluster");
    }
    crate::run::launch::strip(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start the process for the tier")?;
    supervise::keep(child.id());
    Ok(child)
}
