//! One run of a program that knows nothing of experiments, from its first instruction to its last.
//!
//! Invariants: the program is stopped once before it begins and once when it ends, by ptrace(2), and by nothing in between but an `exec` of its own: so its time has no
//! `fork` and no `exec` in it, and its most resident memory is read while it still has any. (`ru_maxrss` has in it what the process had
//! before `exec`, and here that is more than many of these programs take.)

use super::super::arm::Arm;
use super::list::Listed;
use crate::process::Memory;
use crate::worker::reap;
use anyhow::{bail, ensure, Context, Result};
use nix::sys::ptrace::{self, Event};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::Pid;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a run took.
pub(super) struct Taken {
    pub(super) time_s: f64,
    pub(super) elapsed_s: f64,
    pub(super) cpu_s: f64,
    pub(super) rss_peak_bytes: u64,
    pub(super) minor_faults: u64,
}

/// Runs a program of `directory` with an arm's allocator. What it writes goes to a directory of its own.
///
/// # Errors
/// When it cannot be started, ends badly, or does not say how fast it was.
pub(super) fn run(program: &Listed, directory: &Path, arm: &Arm, processors: NonZeroUsize) -> Result<Taken> {
    let scratch = tempfile::Builder::new().prefix("memfold-programs-").tempdir()?;
    let said = scratch.path().join("said");
    let open = |name: &str| {
        let path = directory.join(name);
        File::open(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let mut command = Command::new(directory.join(program.file()));
    arm.apply(&mut command);
    command.args(program.arguments(directory, processors)).current_dir(scratch.path());
    command.stdin(program.input.map_or(Ok(Stdio::null()), |name| open(name).map(Stdio::from))?);
    command.stdout(File::create(&said)?).stderr(Stdio::null());
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", directory.join(program.file()).display()))?;
    let mut traced = Traced { child, reaped: false };
    let (elapsed, memory) = traced.run_out()?;
    let (status, cost) = reap(traced.child.id(), true)?.context("the program has no status")?;
    traced.reaped = true;
    ensure!(status.success(), "it ended badly: {status}");
    let elapsed_s = elapsed.as_secs_f64();
    let said = String::from_utf8_lossy(&std::fs::read(&said)?).into_owned();
    Ok(Taken {
        time_s: program.time_s(elapsed_s, &said)?,
        elapsed_s,
        cpu_s: cost.user_s + cost.system_s,
        rss_peak_bytes: memory.rss_peak_bytes,
        minor_faults: cost.minor_faults,
    })
}

/// A program that this thread traces; killed and reaped when dropped.
struct Traced {
    child: Child,
    reaped: bool,
}

impl Traced {
    /// Lets it run from its first stop until it is about to end. How long that took, and its memory then.
    fn run_out(&mut self) -> Result<(Duration, Memory)> {
        let pid = Pid::from_raw(self.child.id() as i32);
        match waitpid(pid, None)? {
            WaitStatus::Stopped(..) => {}
            other => bail!("it did not begin: {other:?}"),
        }
        // A script becomes its program by `exec`: told as an event, that is no signal to be passed on.
        let options = ptrace::Options::PTRACE_O_TRACEEXIT | ptrace::Options::PTRACE_O_TRACEEXEC;
        ptrace::setoptions(pid, options | ptrace::Options::PTRACE_O_EXITKILL)?;
        let begin = Instant::now();
        ptrace::cont(pid, None)?;
        loop {
            match waitpid(pid, None)? {
                WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXIT as i32 => break,
                WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal)?,
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                    self.reaped = true;
                    bail!("it was killed");
                }
                _ => ptrace::cont(pid, None)?,
            }
        }
        let elapsed = begin.elapsed();
        let memory = Memory::of(self.child.id())?;
        ptrace::detach(pid, None)?;
        Ok((elapsed, memory))
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.reaped {
            // An error means that it has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
