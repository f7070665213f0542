//! A daemon and programs under it, as the tests start, signal and ask them.

use crate::command_line::memfold;
use crate::{wait_for, wait_until, LIMIT};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that does not outlive the test.
pub struct Running(pub Child);

impl Running {
    /// Starts `memfold-e2e` with its words, with control pages in `home`, which nobody else uses, a short cold age, and no other variable of
    /// memfold's but these. What it says is kept, and it is told to end by the end of its input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(program: &str, home: &Path, words: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = Running::command(program, home, words);
        Running(command.envs(variables.iter().copied()).spawn().expect("a program to start"))
    }

    /// The same, not started yet.
    pub fn command(program: &str, home: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEMFOLD_") {
                command.env_remove(name);
            }
        }
        command.args(words).env("MEMFOLD_RUNTIME_DIR", home).env("MEMFOLD_COLD_AGE", "60ms");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for, so the number is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// Ends it by SIGKILL, and waits until it has.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.0.wait().expect("our own child");
    }

    /// What it printed and what it complained of, once it has come to its end, and ended well.
    ///
    /// # Panics
    /// If it does not end, or not well.
    pub fn finish(mut self, what: &str) -> (String, String) {
        drop(self.0.stdin.take());
        let status = wait_for(LIMIT, || {
            self.0.try_wait().expect("our own child").ok_or_else(|| format!("{what} ends"))
        });
        let (mut out, mut errors) = (String::new(), String::new());
        let read = |from: Option<&mut dyn Read>, to: &mut String| {
            from.map(|stream| stream.read_to_string(to)).transpose().map(drop)
        };
        read(self.0.stdout.as_mut().map(|stream| stream as &mut dyn Read), &mut out).expect("text");
        read(self.0.stderr.as_mut().map(|stream| stream as &mut dyn Read), &mut errors).expect("text");
        assert!(status.success(), "{what}: {status}\n{out}{errors}");
        (out, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon that listens, with counters to ask for.
pub struct Daemon {
    /// The process.
    pub running: Running,
    /// Where it listens.
    pub socket: PathBuf,
    metrics: PathBuf,
}

impl Daemon {
    /// Starts one over the control pages in `home`, with more options, and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn start(home: &Path, options: &[&str]) -> Daemon {
        let (socket, metrics) = (home.join("daemon.sock"), home.join("metrics.sock"));
        let mut command = memfold(home);
        command.args(["daemon", "--socket"]).arg(&socket).arg("--metrics").arg(&metrics).args(options);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a daemon to start");
        let daemon = Daemon { running: Running(child), socket, metrics };
        wait_until(LIMIT, "the daemon answers", || {
            UnixStream::connect(&daemon.socket).is_ok() && daemon.try_counters().is_some()
        });
        daemon
    }

    /// The path of its socket.
    ///
    /// # Panics
    /// If that is no text.
    pub fn at(&self) -> &str {
        self.socket.to_str().expect("a path that is text")
    }

    fn try_counters(&self) -> Option<String> {
        let mut connection = UnixStream::connect(&self.metrics).ok()?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        connection.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// What it answers who asks for its counters.
    ///
    /// # Panics
    /// If it does not answer well.
    pub fn counters(&self) -> String {
        let text = self.try_counters().expect("an answer");
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
        text
    }

    /// A counter, of a process if it is of one.
    pub fn counter(&self, name: &str, pid: Option<u32>) -> Option<u64> {
        let key = pid.map_or(format!("memfold_{name} "), |pid| format!("memfold_{name}{{pid=\"{pid}\"}} "));
        self.counters().lines().find_map(|line| line.strip_prefix(&key)?.parse().ok())
    }

    /// The descriptors that it has open.
    ///
    /// # Panics
    /// If it is gone.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.running.id())).expect("the daemon runs").count()
    }

    /// Tells it to end, and waits until it has, in order.
    ///
    /// # Panics
    /// If it does not end, or leaves its sockets behind.
    pub fn end(mut self) {
        self.running.signal(libc::SIGTERM);
        wait_until(LIMIT, "the daemon ends", || {
            self.running.0.try_wait().expect("our own child").is_some_and(|status| {
                assert!(status.success(), "{status}");
                true
            })
        });
        assert!(!self.socket.exists() && !self.metrics.exists(), "it left its sockets");
    }
}

/// The number of a line `name value`.
///
/// # Panics
/// If there is no such line.
pub fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Sees that a program verified its bytes, and had some folded and back.
///
/// # Panics
/// If it did not.
pub fn judge(said: &(String, String)) {
    assert_eq!(value(&said.0, "lost"), 0, "{said:?}");
    assert!(value(&said.0, "restored") > 0, "{said:?}");
}
