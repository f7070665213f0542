//! Processes that a test starts: daemons, programs that they serve, and programs that attack them.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that does not outlive the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(dir: &Path, arguments: &[&str]) -> Running {
        Running::start_with(dir, arguments, &[])
    }

    pub fn start_with(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = Running::command(dir, arguments);
        Running(command.envs(variables.iter().copied()).spawn().unwrap())
    }

    /// One that may not lengthen files beyond `bytes`.
    pub fn start_limited(dir: &Path, arguments: &[&str], bytes: u64) -> Running {
        let mut command = Running::command(dir, arguments);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a system call, and the closure allocates nothing.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        Running(command.spawn().unwrap())
    }

    pub fn command(dir: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memfold-served"));
        command.args(arguments).env("MEMFOLD_RUNTIME_DIR", dir.join("runtime")).env_remove("MEMFOLD_DAEMON");
        command.env_remove("MEMFOLD_CONTROL_DIR").stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What it printed, once it has come to its end, and ended well.
    pub fn finish(mut self, what: &str) -> String {
        drop(self.0.stdin.take());
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < Duration::from_secs(180), "{what} does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let (mut out, mut errors) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.success(), "{what}: {status}\n{out}{errors}");
        out
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for, so the number is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon that listens.
pub struct Daemon {
    pub running: Running,
    pub socket: PathBuf,
}

impl Daemon {
    pub fn start(dir: &Path, more: &[&str]) -> Daemon {
        let socket = dir.join("daemon.sock");
        let mut arguments = vec!["daemon", socket.to_str().unwrap()];
        arguments.extend(more);
        let running = Running::start(dir, &arguments);
        let began = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < Duration::from_secs(120), "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Daemon { running, socket }
    }

    /// A program that works until it is to finish, and until it had pages folded and brought back.
    pub fn client(&self, dir: &Path, seed: u64) -> Running {
        Running::start(dir, &["work", self.socket.to_str().unwrap(), "restored", &seed.to_string(), "16"])
    }
}

/// The number of a line `name value`.
pub fn value(text: &str, name: &str) -> u64 {
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().unwrap()
}

/// Every client verified its bytes, and most of them had some folded and back.
pub fn judge(outputs: &[String]) {
    assert!(outputs.iter().all(|out| value(out, "lost") == 0), "{outputs:?}");
    assert!(outputs.iter().all(|out| value(out, "restored") > 0), "{outputs:?}");
}
