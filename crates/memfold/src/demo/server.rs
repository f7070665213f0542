//! A redis-server of the demo's own: started on a private socket, ended when it is dropped.

use crate::exit;
use crate::pages;
use crate::process;
use crate::run::launch::Launch;
use crate::run::program;
use anyhow::{bail, Context};
use memfold_bench::redis::resp::Client;
use memfold_inspect::Snapshot;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    /// Where its control page is, if it is folded.
    control: Option<PathBuf>,
}

/// Finds redis-server.
///
/// # Errors
/// It is not installed; the message says how to get it.
pub fn find() -> anyhow::Result<PathBuf> {
    program::find(OsStr::new("redis-server"), std::env::var_os("PATH").as_deref()).map_err(|_| {
        exit::unsupported(
            "the demo needs redis-server: apt-get install redis-server (or `make demo`, which does it)",
        )
    })
}

impl Server {
    /// Starts a server in `dir`, folded if `launch` is given, and waits until it answers.
    ///
    /// # Errors
    /// It does not start; what it said is part of the error.
    pub fn start(
        name: &'static str,
        program: &Path,
        dir: &Path,
        launch: Option<&Launch>,
    ) -> anyhow::Result<Server> {
        let socket = dir.join(format!("{name}.sock"));
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(program);
        // No network, no files: only memory is looked at.
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--unixsocket").arg(&socket).args(["--unixsocketperm", "700"]).arg("--dir").arg(dir);
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        // SAFETY: prctl is async-signal-safe, and the closure allocates nothing.
        unsafe { command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(Into::into)) };
        match launch {
            Some(launch) => launch.apply(&mut command),
            None => crate::run::launch::strip(&mut command),
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let control = launch.map(|l| l.control_dir().join(child.id().to_string()));
        let mut server = Server { name, child, socket, log, control };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Ok(mut client) = self.connect() {
                if client.ask(&[b"PING"]).is_ok() {
                    return Ok(());
                }
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} redis-server ended at once ({status}): {}", self.name, self.last_words());
            }
            if Instant::now() > deadline {
                bail!("the {} redis-server does not answer: {}", self.name, self.last_words());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A connection to it.
    ///
    /// # Errors
    /// It does not listen.
    pub fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(&self.socket)
    }

    /// Adds what the server said, if it ended, to an error that came from speaking to it.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.child.try_wait() {
            Ok(Some(status)) => error.context(format!(
                "the {} redis-server ended ({status}): {}",
                self.name,
                self.last_words()
            )),
            _ => error,
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
        if last.is_empty() {
            return "it said nothing".into();
        }
        last.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }

    /// Its resident memory in bytes: everything that the process occupies, the pager's store included.
    ///
    /// # Errors
    /// It is gone.
    pub fn resident(&self) -> anyhow::Result<u64> {
        process::field_bytes(&format!("/proc/{}/status", self.child.id()), "VmRSS")
            .with_context(|| format!("the {} redis-server is gone", self.name))
    }

    /// Its control page; `None` if it has none.
    pub fn page(&self) -> Option<Snapshot> {
        pages::snapshot(self.control.as_deref()?).ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of its memory is kept, so it need not leave in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
