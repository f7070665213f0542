//! The process beside a program that keeps its tier on the network (`memfold-depot`): started before the program, and again if it ends.
//!
//! What it is not: needed for the program's bytes by itself. They are on the engines, and whoever is started here finds them.
//!
//! Invariants: it has nothing of the terminal, so that a key that interrupts the program does not end it, and goes on when the launcher is gone, for as
//! long as a process of the run lives.

use super::supervise;
use crate::text;
use anyhow::{Context, Result};
use memfold_depot::Config;
use memfold_pager::tier::choice::Choice;
use memfold_pager::tier::wire::SOCKET;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long we stay for what it deletes when the program has ended.
const PARTING: Duration = Duration::from_secs(5);
/// It is not started again sooner than that after its start.
const APART: Duration = Duration::from_millis(200);

/// The process.
#[derive(Debug)]
pub struct Depot {
    child: Child,
    talk: Talk,
    directory: PathBuf,
    run: PathBuf,
    tier: String,
    /// Whether its engines are nodes of a cluster, and on how many everything is kept.
    found: (bool, usize),
    started: Instant,
    quiet: bool,
}

impl Depot {
    /// Starts one for the processes of a run, if the tier is on the network. Its engines must be there now.
    ///
    /// # Errors
    /// They are not, or will not do, or it does not begin; each with the remedy.
    pub fn start(tier: &str, run: &Path, quiet: bool) -> Result<Option<Depot>> {
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
            .context("cannot make a directory for the tier")?;
        let found = (config.is_cluster(), config.copies());
        let (mut child, talk) = spawn(directory.path(), run, tier, found)?;
        let started = Instant::now();
        while !directory.path().join(SOCKET).exists() {
            let may_begin = matches!(child.try_wait(), Ok(None)) && started.elapsed() < PATIENCE;
            anyhow::ensure!(may_begin, "the process for the tier does not begin");
            sleep(Duration::from_millis(5));
        }
        // From now on it is that process's, which removes it.
        let directory = directory.keep();
        let (run, tier) = (run.to_owned(), tier.to_owned());
        Ok(Some(Depot { child, talk, directory, run, tier, found, started, quiet }))
    }

    /// The directory of its socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Says what it has to say, and starts it again if it has ended.
    pub fn look_after(&mut self) {
        self.hear();
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if ended && self.started.elapsed() >= APART {
            self.started = Instant::now();
            if let Ok(anew) = spawn(&self.directory, &self.run, &self.tier, self.found) {
                (self.child, self.talk) = anew;
            }
        }
    }

    /// Leaves it, and waits for a while until what the program had on the engines is deleted: as process 1 we would end it too. Not where other processes
    /// of the run are left.
    pub fn part(mut self) {
        let _ = self.talk.stream.get_ref().shutdown(Shutdown::Write);
        let until = Instant::now() + PARTING;
        while !self.hear() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
    }

    /// Passes on what it has said, each line as a whole.
    /// Whether that was all that it will ever say.
    fn hear(&mut self) -> bool {
        loop {
            match self.talk.next() {
                Ok(None) => return true,
                Ok(Some(line)) if !self.quiet => text::say(line),
                Ok(Some(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Our end of the process's standard input: by that it learns that we are gone, and there it says what people should know.
#[derive(Debug)]
struct Talk {
    stream: BufReader<UnixStream>,
    /// What has come of the next line.
    line: Vec<u8>,
}

impl Talk {
    /// The next line; `None` where none will ever come.
    fn next(&mut self) -> io::Result<Option<String>> {
        self.stream.read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }
}

fn spawn(
    directory: &Path,
    run: &Path,
    tier: &str,
    (cluster, copies): (bool, usize),
) -> Result<(Child, Talk)> {
    // The file that is being executed, also when its name is gone: there may be a newer version by now.
    let executable = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(executable.unwrap_or_else(|| "/proc/self/exe".into()));
    command.arg("depot").arg(directory).arg(tier).arg(run).arg("--copies").arg(copies.to_string());
    if cluster {
        command.arg("--cluster");
    }
    crate::run::launch::strip(&mut command);
    let (ours, theirs) = UnixStream::pair().context("cannot speak with the process for the tier")?;
    ours.set_nonblocking(true)?;
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().context("cannot start the process for the tier")?;
    supervise::keep(child.id());
    Ok((child, Talk { stream: BufReader::new(ours), line: Vec::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_that_comes_in_parts_is_heard_as_a_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut talk = Talk { stream: BufReader::new(ours), line: Vec::new() };
        theirs.write_all(b"one \xc3").unwrap();
        assert_eq!(talk.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        theirs.write_all(b"\xa4\ntwo").unwrap();
        assert_eq!(talk.next().unwrap().as_deref(), Some("one \u{e4}"));
        assert!(talk.next().is_err());
        drop(theirs);
        assert_eq!(talk.next().unwrap().as_deref(), Some("two"));
        assert_eq!(talk.next().unwrap(), None);
    }
}
