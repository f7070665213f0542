//! The experiment's end of a worker: starting it, asking it, ending it.

use super::Job;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker on `job`, in the environment that `arm` gives its command.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(program: &Program, job: &Job, arm: impl FnOnce(&mut Command)) -> Result<Worker> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(serde_json::to_string(job)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        arm(&mut command);
        let mut child =
            command.spawn().with_context(|| format!("cannot start the worker {}", program.path.display()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Worker { child, requests, answers: BufReader::new(answers) })
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
        self.requests.write_all(line.as_bytes()).context("the worker has gone away")
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// When the worker ends without one, saying how it ended, or answers something else.
    pub fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
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
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
