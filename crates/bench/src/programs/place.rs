//! Where a program runs, how it is started there, and how it ends.

use crate::launch::plain;
use crate::process::tree;
use crate::worker::{reap, Cost, Program};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where a program runs, and how it is started there.
pub(super) struct Place<'a> {
    /// A directory of its own.
    pub(super) dir: &'a Path,
    /// About how much heap it is to build, bytes.
    pub(super) bytes: u64,
    /// Records that stay in use together.
    pub(super) together: u64,
    /// What folds it, if it is folded.
    memfold: Option<&'a Program>,
    /// Where what is folded goes below memory, if it does.
    tier: Option<&'a str>,
}

/// A process that was started; killed with all its descendants when dropped.
pub(super) struct Started {
    child: Child,
    log: PathBuf,
    reaped: bool,
}

/// The user and group `nobody` of every Linux: 65534, the kernel's overflow id.
pub(super) const NOBODY: u32 = 65_534;
/// Where a program inherits the device: above the numbers that programs give to files of their own.
const DEVICE_NUMBER: i32 = 200;

/// Whether root runs us.
pub(super) fn is_root() -> bool {
    // SAFETY: no arguments, no effects.
    unsafe { libc::geteuid() == 0 }
}

/// How long a program may take to end.
const PATIENCE: Duration = Duration::from_secs(300);
impl<'a> Place<'a> {
    /// A place in which programs are folded by `memfold`, if by any, and keep records in use together.
    pub(super) fn new(dir: &'a Path, bytes: u64, together: u64, memfold: Option<&'a Program>) -> Place<'a> {
        Place { dir, bytes, together, memfold, tier: None }
    }

    /// The same with a tier below memory, as `memfold run --tier` takes it.
    pub(super) fn over(self, tier: Option<&'a str>) -> Place<'a> {
        Place { tier, ..self }
    }

    /// A place in which programs run plainly, and nothing is said of what stays in use.
    pub(super) fn plain(dir: &'a Path, bytes: u64) -> Place<'a> {
        Place { dir, bytes, together: 1, memfold: None, tier: None }
    }
}

impl Place<'_> {
    /// A command that runs a program in this place, folded if it is to be.
    pub(super) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = match self.memfold {
            Some(memfold) => {
                let mut command = Command::new(&memfold.path);
                plain(&mut command);
                command.arg("run").arg("--summary").arg(self.summary_file());
                command.args(self.tier.iter().flat_map(|tier| ["--tier", tier]));
                command.arg("--").arg(program);
                command.env("MEMFOLD_LIB", &memfold.library);
                command
            }
            None => {
                let mut command = Command::new(program);
                plain(&mut command);
                command
            }
        };
        command.args(arguments).current_dir(self.dir);
        command
    }

    /// The same for a program that refuses to run as root, where root runs us: as `nobody`, to whom the place then belongs.
    ///
    /// A folded one has copies of memfold's files, which may lie where only their owner looks, and inherits the device, which
    /// `memfold run` then need not be permitted to open.
    ///
    /// # Errors
    /// When a file cannot be copied or given away.
    pub(super) fn command_as_nobody(&self, program: &Path, arguments: &[&str]) -> Result<Command> {
        let give = |path: &Path| {
            chown(path, Some(NOBODY), Some(NOBODY))
                .with_context(|| format!("cannot give away {}", path.display()))
        };
        give(self.dir)?;
        let copies = match self.memfold {
            None => None,
            Some(memfold) => {
                let copy = |from: &Path, name: &str| -> Result<PathBuf> {
                    let to = self.dir.join(name);
                    fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
                    give(&to)?;
                    Ok(to)
                };
                let (path, library) =
                    (copy(&memfold.path, "memfold")?, copy(&memfold.library, "libmemfold.so")?);
                Some(Program { path, library, arguments: Vec::new() })
            }
        };
        let place = Place::new(self.dir, self.bytes, self.together, copies.as_ref()).over(self.tier);
        let mut command = place.command(program, arguments);
        command.uid(NOBODY).gid(NOBODY);
        if copies.is_some() {
            command.env("MEMFOLD_RUNTIME_DIR", self.dir);
        }
        if let (Some(_), Ok(device)) =
            (&copies, File::options().read(true).write(true).open("/dev/userfaultfd"))
        {
            command.env("MEMFOLD_UFFD_FD", DEVICE_NUMBER.to_string());
            // SAFETY: dup2 is async-signal-safe, the descriptor is open in the child, and nothing is allocated.
            unsafe {
                command.pre_exec(move || match libc::dup2(device.as_raw_fd(), DEVICE_NUMBER) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                })
            };
        }
        Ok(command)
    }

    /// Starts such a command; what it says on standard error is kept.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn spawn(&self, mut command: Command) -> Result<Started> {
        let log = self.dir.join("log");
        command.stderr(File::create(&log)?);
        // SAFETY: prctl is async-signal-safe, and the closure allocates nothing. `memfold run` passes the signal on.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Started { child, log, reaped: false })
    }

    /// Where the summary of `memfold run` goes.
    pub(super) fn summary_file(&self) -> PathBuf {
        self.dir.join("summary.json")
    }
}

impl Started {
    /// The process that was started: the program, or `memfold run` over it.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The ends of its pipes.
    ///
    /// # Errors
    /// When it has none.
    pub(super) fn pipes(&mut self) -> Result<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take()).context("the program has no pipes")
    }

    /// Whether it has not ended.
    ///
    /// # Errors
    /// When that cannot be told.
    pub(super) fn runs(&mut self) -> Result<bool> {
        let ended = self.child.try_wait()?.is_some();
        self.reaped |= ended;
        Ok(!ended)
    }

    /// The last lines that it wrote to standard error.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        if last.is_empty() {
            return "it said nothing".into();
        }
        last.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }

    /// Waits until it has ended, and says what it and all that it waited for took.
    pub(super) fn finish(&mut self) -> Result<Cost> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some((status, cost)) = reap(self.pid(), false)? {
                self.reaped = true;
                ensure!(status.success(), "it ended badly: {status}: {}", self.last_words());
                return Ok(cost);
            }
            if Instant::now() >= end {
                bail!("it has not ended {} s after it was told to", PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        kill(self.pid());
        let _ = self.child.wait();
    }
}

/// Kills a child of ours that is not reaped, and all its descendants.
pub(super) fn kill(root: u32) {
    for pid in tree(root) {
        // SAFETY: sends a signal to a descendant of ours; one that has just ended gets none.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}
