//! The experiment's end of a worker: starting it, asking it, ending it.

use super::Job;
use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// What experiments start: an executable and the arguments before the job, and the library that arms of ours preload.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// What makes it call [`super::main`] with the argument that follows.
    pub arguments: Vec<OsString>,
    /// `libmemfold.so`.
    pub library: PathBuf,
}

/// A running worker; killed and reaped when dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    reaped: bool,
}

/// What a process took from the host in all its life, as the kernel accounted for it (`wait4(2)`), its threads and the
/// children that it waited for among it. The most memory that it had is not among it: `ru_maxrss` begins with what the
/// process that started it had (`execve(2)` keeps it); see [`crate::process::Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// CPU time in the program, seconds.
    pub user_s: f64,
    /// CPU time in the kernel, seconds.
    pub system_s: f64,
    /// Faults that needed no reading from a device.
    pub minor_faults: u64,
    /// Faults that did.
    pub major_faults: u64,
}

impl Worker {
    /// Starts a worker on `job`, in the environment that `arm` gives its command.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(program: &Program, job: &Job, arm: impl FnOnce(&mut Command)) -> Result<Worker> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(serde_json::to_string(job)?);
        arm(&mut command);
        Worker::spawn(command)
    }

    /// Starts `command` as a worker: a program that keeps to the protocol without being this executable.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Result<Worker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| {
            format!("cannot start the worker {}", Path::new(command.get_program()).display())
        })?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                let (requests, answers) = (Some(requests), BufReader::new(answers));
                Ok(Worker { child, requests, answers, reaped: false })
            }
            _ => bail!("the worker has no pipes"),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request without waiting for the answer.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn send(&mut self, request: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let pipe = self.requests.as_mut().context("the worker was told to end")?;
        pipe.write_all(line.as_bytes()).context("the worker has gone away")
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// When the worker ends without one, saying how it ended, or answers something else.
    pub fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            self.reaped = true;
            bail!("the worker ended without an answer: {status}");
        }
        serde_json::from_str(&line).with_context(|| format!("the worker answered {line:?}"))
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// As [`Worker::send`] and [`Worker::receive`].
    pub fn ask<T: for<'a> Deserialize<'a>>(&mut self, request: &impl Serialize) -> Result<T> {
        self.send(request)?;
        self.receive()
    }

    /// Tells the worker to end, waits until it has, and says what it took.
    ///
    /// # Errors
    /// When it did not end well.
    pub fn finish(mut self) -> Result<Cost> {
        drop(self.requests.take());
        let (status, cost) = reap(self.pid(), true)?.context("the worker has no status")?;
        self.reaped = true;
        ensure!(status.success(), "the worker ended badly: {status}");
        Ok(cost)
    }
}

/// Reaps a child of ours that is not reaped yet: how it ended, and what it took. `None` where it has not ended, if `wait` does not
/// say to wait for that.
///
/// # Errors
/// When there is no such child.
pub(crate) fn reap(pid: u32, wait: bool) -> Result<Option<(ExitStatus, Cost)>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = if wait { 0 } else { libc::WNOHANG };
    let ended = loop {
        // SAFETY: both out-parameters are valid; that the child is ours and not reaped is the caller's word, and otherwise an error.
        let found = unsafe { libc::wait4(pid as i32, &mut status, options, &mut usage) };
        if found >= 0 {
            break found > 0;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).with_context(|| format!("cannot wait for process {pid}"));
        }
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cost = Cost {
        user_s: seconds(usage.ru_utime),
        system_s: seconds(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
    };
    Ok(ended.then(|| (ExitStatus::from_raw(status), cost)))
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
