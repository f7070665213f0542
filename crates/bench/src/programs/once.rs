//! One run of one program in one arm.

use super::figures;
use super::kind::Kind;
use super::subject::{Hot, Subject};
use super::{Arm, Options};
use crate::backing;
use crate::launch::plain;
use crate::process::{cpu_ns, proportional, tree, Memory};
use crate::worker::{reap, Cost, Program};
use anyhow::{anyhow, bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What one run found.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The program.
    pub program: Kind,
    /// Number of the repeat, from 0.
    pub repeat: usize,
    /// The arm.
    pub arm: Arm,
    /// Items of the heap; all of them were read back and were right.
    pub items: u64,
    /// From the program's start until its heap was built, s.
    pub load_s: f64,
    /// Memory once the heap was built, and from then on.
    pub moments: Vec<Moment>,
    /// What stays in use, in the first seconds of the idle phase.
    pub hot_begin: Hot,
    /// The same in the last seconds.
    pub hot_end: Hot,
    /// Reading everything back, s.
    pub verify_s: f64,
    /// From being told to end until the process that was started is gone, s.
    pub exit_s: f64,
    /// CPU time of all its processes, in the program and in the kernel, s.
    pub cpu_s: f64,
    /// What `memfold run --summary` says; `None` in the other arms.
    pub folded: Option<Folded>,
}

/// Memory of all processes of a program at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Time since the heap was built, s.
    pub at_s: f64,
    /// Resident memory (`VmRSS`), bytes; what processes share is in it once for each.
    pub resident_bytes: u64,
    /// Of it what is anonymous (`RssAnon`), bytes.
    pub anonymous_bytes: u64,
    /// Proportional share (`Pss`), bytes; taken at the moments of [`Options::moments`] only, as it takes a walk of the page tables.
    pub pss_bytes: Option<u64>,
    /// How many processes.
    pub processes: usize,
}

/// What the summary of `memfold run` says of the pager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Folded {
    /// `embedded`, `daemon` or `off`.
    pub mode: String,
    /// Why it is off, where it is.
    pub reason: Option<String>,
    /// Pages.
    pub pages: Pages,
    /// Waits for the pager, as a share of the run, per cent.
    pub stall_pct: f64,
    /// Most that was saved at a time, bytes.
    pub saved_bytes_peak: u64,
}

/// Pages in such a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Compressed and given back to the kernel.
    pub evicted: u64,
    /// Brought back from the store.
    pub restored: u64,
    /// Touched while they were set aside.
    pub second_chance: u64,
    /// Lost.
    pub lost: u64,
}

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
/// How long it may take in all, beside the idle phase: one that hangs is killed then.
const LONGEST: Duration = Duration::from_secs(1200);
/// Longest part of the idle phase over which the hot load is measured, at its begin and at its end.
const WINDOW: Duration = Duration::from_secs(5);
/// Memory is looked at so often.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries out one run.
pub(super) fn run(memfold: &Program, options: &Options, kind: Kind, arm: Arm, repeat: usize) -> Result<Run> {
    let closed = fs::Permissions::from_mode(0o700);
    let scratch = tempfile::Builder::new().prefix("memfold-programs-").permissions(closed).tempdir()?;
    let place = Place {
        dir: scratch.path(),
        bytes: options.bytes,
        together: options.together,
        memfold: (arm == Arm::Folded).then_some(memfold),
    };
    backing::back(2 * options.bytes);
    let began = Instant::now();
    let mut subject = kind.start(&place)?;
    let root = subject.started().pid();
    let _watchdog = Watchdog::over(root, Duration::from_millis(options.idle_millis) + LONGEST);
    let items = subject.load()?;
    let load_s = began.elapsed().as_secs_f64();
    if options.spoil {
        subject.spoil()?;
    }
    let (moments, [hot_begin, _, hot_end]) = idle(subject.as_mut(), root, options)?;
    let began = Instant::now();
    let wrong = subject.verify()?;
    let verify_s = began.elapsed().as_secs_f64();
    ensure!(wrong == 0, "{wrong} of {items} items are wrong");
    let before = tree(root).into_iter().filter_map(|pid| cpu_ns(pid).ok()).sum::<u64>() as f64 / 1e9;
    let began = Instant::now();
    subject.leave()?;
    let cost = subject.started().finish()?;
    let exit_s = began.elapsed().as_secs_f64();
    Ok(Run {
        program: kind,
        repeat,
        arm,
        items,
        load_s,
        moments,
        hot_begin,
        hot_end,
        verify_s,
        exit_s,
        // What nobody waited for is missing in the one, what came after the last look in the other.
        cpu_s: before.max(cost.user_s + cost.system_s),
        folded: place.memfold.map(|_| place.summary()).transpose()?,
    })
}

/// The idle phase: the program's own small load in three windows, and memory meanwhile.
fn idle(subject: &mut dyn Subject, root: u32, options: &Options) -> Result<(Vec<Moment>, [Hot; 3])> {
    let whole = Duration::from_millis(options.idle_millis);
    let window = (whole / 3).min(WINDOW);
    let stop = AtomicBool::new(false);
    let first = look(root, Instant::now(), true)?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| watch(root, began, &options.moments(), whole, &stop));
        let hot = [window, whole - 2 * window, window].map(|time| subject.hot(time));
        let failed = hot.iter().any(Result::is_err);
        stop.store(failed, Relaxed);
        let moments = sampler.join().map_err(|_| anyhow!("the sampling thread panicked"))?;
        let [begin, middle, end] = hot;
        let hot = [begin?, middle?, end?];
        Ok((std::iter::once(first).chain(moments?).collect(), hot))
    })
}

/// Looks at the memory until the idle phase is over, closely at `moments`.
fn watch(
    root: u32,
    began: Instant,
    moments: &[Duration],
    whole: Duration,
    stop: &AtomicBool,
) -> Result<Vec<Moment>> {
    let pause = PAUSE.min(whole / 10).max(Duration::from_millis(10));
    let ticks = (1..).map(|number| pause * number).take_while(|at| *at <= whole);
    let mut plan: Vec<(Duration, bool)> =
        ticks.filter(|at| !moments.contains(at)).map(|at| (at, false)).collect();
    plan.extend(moments.iter().map(|at| (*at, true)));
    plan.sort();
    let mut seen = Vec::new();
    for (at, closely) in plan {
        while began.elapsed() < at && !stop.load(Relaxed) {
            sleep((at - began.elapsed().min(at)).min(Duration::from_millis(50)));
        }
        if stop.load(Relaxed) {
            break;
        }
        seen.push(look(root, began, closely)?);
    }
    Ok(seen)
}

/// The memory of a process and all its descendants now.
fn look(root: u32, began: Instant, closely: bool) -> Result<Moment> {
    let at_s = began.elapsed().as_secs_f64();
    let mut moment =
        Moment { at_s, resident_bytes: 0, anonymous_bytes: 0, pss_bytes: closely.then_some(0), processes: 0 };
    for pid in tree(root) {
        // One that has just ended has none.
        let Ok(memory) = Memory::of(&pid.to_string()) else { continue };
        moment.resident_bytes += memory.rss_bytes;
        moment.anonymous_bytes += memory.anonymous_bytes;
        moment.processes += 1;
        if let (Some(sum), Ok(share)) = (&mut moment.pss_bytes, proportional(pid)) {
            *sum += share;
        }
    }
    ensure!(moment.resident_bytes > 0, "the program is gone");
    Ok(moment)
}

impl<'a> Place<'a> {
    /// A place in which programs run plainly, and nothing is said of what stays in use.
    pub(super) fn plain(dir: &'a Path, bytes: u64) -> Place<'a> {
        Place { dir, bytes, together: 1, memfold: None }
    }
}

impl Place<'_> {
    /// A command that runs a program in this place, folded if it is to be.
    pub(super) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = match self.memfold {
            Some(memfold) => {
                let mut command = Command::new(&memfold.path);
                plain(&mut command);
                command.arg("run").arg("--summary").arg(self.summary_file()).arg("--").arg(program);
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
        let place =
            Place { dir: self.dir, bytes: self.bytes, together: self.together, memfold: copies.as_ref() };
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

    fn summary_file(&self) -> PathBuf {
        self.dir.join("summary.json")
    }

    fn summary(&self) -> Result<Folded> {
        let text = fs::read_to_string(self.summary_file()).context("memfold run wrote no summary")?;
        let folded: Folded = serde_json::from_str(&text).context("the summary of memfold run")?;
        ensure!(folded.pages.lost == 0, "the pager reports {} lost pages", folded.pages.lost);
        Ok(folded)
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
fn kill(root: u32) {
    for pid in tree(root) {
        // SAFETY: sends a signal to a descendant of ours; one that has just ended gets none.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

/// Kills a program that hangs, so that whoever waits for its answer finds that it has ended.
struct Watchdog {
    /// Closed when it is over.
    _over: Sender<()>,
}

impl Watchdog {
    /// Over child `root`, which is not reaped before `limit` has passed or the value is dropped.
    fn over(root: u32, limit: Duration) -> Watchdog {
        let (over, wait) = channel::<()>();
        std::thread::spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                kill(root);
            }
        });
        Watchdog { _over: over }
    }
}

impl Run {
    /// The line of `runs.csv`.
    pub(super) fn line(&self, options: &Options) -> Vec<String> {
        let fixed = [self.program.name().to_owned(), self.repeat.to_string(), self.arm.name().to_owned()];
        let values = figures::of(self, options);
        let cells = values.into_iter().map(|value| value.map_or(String::new(), |v| v.to_string()));
        fixed.into_iter().chain(cells).collect()
    }

    /// The lines of `memory.csv`.
    pub(super) fn flat_moments(&self) -> impl Iterator<Item = Flat> + '_ {
        let (program, repeat, arm) = (self.program, self.repeat, self.arm);
        self.moments.iter().map(
            move |&Moment { at_s, resident_bytes, anonymous_bytes, pss_bytes, processes }| Flat {
                program,
                repeat,
                arm,
                at_s,
                resident_bytes,
                anonymous_bytes,
                pss_bytes,
                processes,
            },
        )
    }
}

/// A moment of a run.
#[derive(Debug, Serialize)]
pub(super) struct Flat {
    program: Kind,
    repeat: usize,
    arm: Arm,
    at_s: f64,
    resident_bytes: u64,
    anonymous_bytes: u64,
    pss_bytes: Option<u64>,
    processes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_and_one_that_ends_in_time_is_not() {
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & wait"]).spawn().expect("sh starts")
        };
        let mut patient = start();
        drop(Watchdog::over(patient.id(), Duration::from_secs(1000)));
        let mut hangs = start();
        let _watchdog = Watchdog::over(hangs.id(), Duration::from_millis(50));
        // By itself it would end after a thousand seconds.
        assert!(!hangs.wait().expect("a child").success());
        assert!(patient.try_wait().expect("a child").is_none());
        kill(patient.id());
        patient.wait().expect("a child");
    }
}
