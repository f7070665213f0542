//! Child processes that never outlive their run.
//!
//! Invariants: a child is killed when its handle is dropped, and by the kernel when this process dies
//! (`PR_SET_PDEATHSIG`, which counts the death of the thread that started it: start children from one that stays).
//! It has a process group of its own, so that Ctrl-C reaches us alone. It joins its cgroups before it executes.

use crate::stop::Stop;
use anyhow::{bail, Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A child process.
#[derive(Debug)]
pub struct Running {
    child: Child,
    errors: File,
    what: String,
}

/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Starts `command`, which `what` names in messages, within the cgroups whose `cgroup.procs` files are given.
///
/// # Errors
/// When it cannot be started, or may not join a group.
pub fn start(command: &mut Command, what: impl Into<String>, groups: &[PathBuf]) -> Result<Running> {
    let what = what.into();
    let errors = tempfile::tempfile().context("cannot make a temporary file")?;
    let open = |path: &PathBuf| {
        OpenOptions::new().write(true).open(path).with_context(|| format!("cannot open {}", path.display()))
    };
    let doors: Vec<File> = groups.iter().map(open).collect::<Result<_>>()?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone()?);
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl and getppid take no memory of ours.
        let orphaned = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::getppid() as u32 != parent
        };
        if orphaned {
            return Err(std::io::Error::last_os_error());
        }
        for door in &doors {
            // SAFETY: the byte is valid; "0" means the writer itself.
            if unsafe { libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) } != 1 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated but on an error's way.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().with_context(|| format!("cannot start {what}"))?;
    Ok(Running { child, errors, what })
}

impl Running {
    /// Waits until it has ended well. It still runs after an interruption.
    ///
    /// # Errors
    /// [`crate::Interrupted`], or what it wrote to its standard error if it did not end well.
    pub fn wait(&mut self, stop: &Stop) -> Result<()> {
        loop {
            stop.check()?;
            match self.child.try_wait().with_context(|| format!("cannot wait for {}", self.what))? {
                None => std::thread::sleep(LOOK),
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = self.said();
                    bail!("{} ended with {status}: {}", self.what, said.trim());
                }
            }
        }
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it, if it has not ended yet.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        let _ = self.errors.rewind();
        let _ = self.errors.read_to_string(&mut text);
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        start(Command::new("sh").args(["-c", script]), "a shell", &[]).unwrap()
    }

    #[test]
    fn a_child_that_fails_is_reported_with_what_it_said() {
        let error = shell("echo no such luck >&2; exit 3").wait(&Stop::default()).unwrap_err();
        assert_eq!(error.to_string(), "a shell ended with exit status: 3: no such luck");
        shell("exit 0").wait(&Stop::default()).unwrap();
    }

    #[test]
    fn an_interrupted_wait_kills_the_child() {
        let stop = Stop::default();
        stop.wish();
        let mut child = shell("exec sleep 1000");
        let pid = child.child.id();
        assert!(child.wait(&stop).unwrap_err().is::<crate::Interrupted>());
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_child_enters_its_groups_before_it_starts() {
        let door = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("true");
        start(&mut command, "true", &[door.path().to_owned()]).unwrap().wait(&Stop::default()).unwrap();
        assert_eq!(std::fs::read_to_string(door.path()).unwrap(), "0");
        assert!(start(&mut Command::new("true"), "true", &["/proc/none".into()]).is_err());
    }
}
