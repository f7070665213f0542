//! Running a program to its end, plainly or folded, and what it left: output, exit code and control pages.
//!
//! What it is not: `memfold run`. The environment variables are set here by hand, so that the library is tested by
//! itself.
//!
//! Invariants: a program that is not done when its time is up is killed and fails the test; nothing else is timed.

use memfold_bench::control::Peer;
use memfold_bench::launch::{plain, Folding};
use memfold_inspect::{Counters, Snapshot};
use memfold_pagecache::cgroup::Group;
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{sleep, JoinHandle};
use std::time::{Duration, Instant};

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error, as text.
    pub stderr: String,
}

impl Outcome {
    /// Fails unless the program ended with 0, showing what it said.
    ///
    /// # Panics
    /// As said.
    pub fn expect_success(self, what: &str) -> Outcome {
        assert!(self.status.success(), "{what}: {}\n{}", self.status, self.stderr);
        self
    }
}

/// Copies a program to be executed. Another process writes it: a descriptor of ours that is open for writing is also that of whatever
/// another test's thread forks meanwhile, until it executes something, and nobody can execute what somebody may write (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let mut copy = Command::new(program("cp", "coreutils"));
    let status = copy.arg("--").arg(from).arg(to).stdin(Stdio::null()).status().expect("cp can be executed");
    assert!(status.success(), "{} cannot be copied to {}: {status}", from.display(), to.display());
}

/// The path of a program.
///
/// # Panics
/// If it is not installed, naming the Debian package that has it.
pub fn program(name: &str, package: &str) -> PathBuf {
    // The system's own first: a wrapper of the same name elsewhere in PATH is not the program. Debian keeps
    // postgres's programs in a folder for each version, and the Rust toolchain is often its user's own.
    let system = ["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"].map(PathBuf::from);
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = system.into_iter().chain(versions.map(|version| version.path().join("bin")));
    let found = folders
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not installed: `apt-get install {package}` (`make deps` does so)")
    })
}

/// Folding that sets aside what was not touched for 20 ms, from the first byte on, whatever it costs: the harshest
/// that the settings allow, and the surest to have evicted something before a program ends.
pub fn harsh() -> Folding {
    harsh_with(&crate::preload_library())
}

/// The same with another copy of the library.
pub fn harsh_with(library: &Path) -> Folding {
    Folding::new(library)
        .expect("temporary files can be made")
        .set(Setting::StartAt, "0")
        .set(Setting::ColdAge, "20ms")
        .set(Setting::RecompressAge, "50ms")
        .set(Setting::MaxStall, "100%")
        .set(Setting::MaxCpu, "100%")
}

/// Folding that evicts when it is asked to and at no other time.
pub fn on_request() -> Folding {
    Folding::new(&crate::preload_library()).expect("temporary files can be made").on_request()
}

/// Runs a program as if memfold were not there.
///
/// # Panics
/// If it cannot be started, or is not done after `limit`.
pub fn run_plain(mut command: Command, limit: Duration) -> Outcome {
    plain(&mut command);
    finish(command, limit)
}

/// Runs a program folded.
///
/// # Panics
/// As [`run_plain`].
pub fn run_folded(mut command: Command, folding: &Folding, limit: Duration) -> Outcome {
    folding.apply(&mut command);
    finish(command, limit)
}

/// Where programs inherit the device: above the numbers that they give to files of their own, as `memfold run` does.
/// Chromium, for one, hands its children low ones by number.
const DEVICE_NUMBER: i32 = 200;

/// Has the program run in a control group.
pub fn confine(command: &mut Command, group: &Group) {
    for door in group.doors() {
        let file = File::options().write(true).open(&door);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", door.display()));
        // SAFETY: write is async-signal-safe.
        unsafe { command.pre_exec(move || file.write_all(b"0")) };
    }
}

/// Lets the program inherit `device`, an open `/dev/userfaultfd`, and tells it so.
pub fn inherit(command: &mut Command, device: &File) {
    let number = device.as_raw_fd();
    command.env("MEMFOLD_UFFD_FD", DEVICE_NUMBER.to_string());
    // SAFETY: `dup2` is async-signal-safe, and the descriptor is open in the child too.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(number, DEVICE_NUMBER) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    };
}

/// The counters of every process that kept a control page, running or not.
///
/// # Panics
/// If a file in the directory is not a control page.
pub fn counters(folding: &Folding) -> Vec<Counters> {
    pages(folding).map(|page| page.counters()).collect()
}

/// The mode of every such process, and the reason for it.
///
/// # Panics
/// As [`counters`].
pub fn modes(folding: &Folding) -> Vec<(Mode, String)> {
    pages(folding).map(|page| (page.mode, page.reason)).collect()
}

fn pages(folding: &Folding) -> impl Iterator<Item = Snapshot> {
    let entries = std::fs::read_dir(folding.control_dir()).expect("the control directory is there");
    // Control pages are named by process ids; the library may keep other files beside them.
    let names = entries.map(|entry| entry.expect("readable").path());
    let pages =
        names.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().parse::<u32>().is_ok()));
    pages.map(|path| Peer::open(&path).and_then(|peer| peer.now()).expect("a control page"))
}

/// Fails unless pages were evicted, and none lost, in some process that was folded.
///
/// # Panics
/// As said.
pub fn expect_evictions(folding: &Folding, what: &str) {
    let all = counters(folding);
    let (evicted, lost) =
        all.iter().fold((0, 0), |(evicted, lost), c| (evicted + c.pages.evicted, lost + c.pages.lost));
    assert!(
        evicted > 0,
        "{what}: no page was evicted in any of {} processes, so nothing was tested",
        all.len()
    );
    assert_eq!(lost, 0, "{what}: pages were lost");
}

/// A program that is killed when it goes out of scope.
#[derive(Debug)]
pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The children of all threads of a process; none if it has ended.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}

/// What the threads of a process and of its descendants wait for, a line each: for whoever looks for what hangs.
fn whereabouts(pid: u32) -> String {
    let mut lines = String::new();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads.map(|entry| entry.path()) {
        let of = |name: &str| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
        let call: String = of("syscall").split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        let name = thread.file_name().unwrap_or_default().to_string_lossy();
        lines += &format!("{pid}/{name} {}: {} ({call})\n", of("comm").trim(), of("wchan"));
    }
    children(pid).into_iter().for_each(|child| lines += &whereabouts(child));
    lines
}

/// Ends a process and its descendants, which may keep its pipes open.
fn kill_with_descendants(pid: u32) {
    let children = children(pid);
    // SAFETY: the program is our child and not waited for yet, and so are those that have a parent that lives.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    children.into_iter().for_each(kill_with_descendants);
}

/// Runs a program to its end with the environment that it has.
///
/// # Panics
/// As [`run_plain`].
pub fn finish(command: Command, limit: Duration) -> Outcome {
    finish_told(command, limit, |_| ())
}

/// The same, with its process id told as soon as it is started.
///
/// # Panics
/// As [`run_plain`].
pub fn finish_told(mut command: Command, limit: Duration, tell: impl FnOnce(u32)) -> Outcome {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = format!("{:?}", command.get_program());
    let mut server = Server(command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}")));
    tell(server.0.id());
    let stdout = drain(server.0.stdout.take().expect("piped"));
    let stderr = drain(server.0.stderr.take().expect("piped"));
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = server.0.try_wait().expect("the program is our child") {
            break status;
        }
        if Instant::now() >= end {
            let whereabouts = whereabouts(server.0.id());
            kill_with_descendants(server.0.id());
            drop(server);
            let stderr = stderr.join().expect("the reader does not panic");
            let stderr = String::from_utf8_lossy(&stderr);
            panic!("{what} was not done after {limit:?}: it hangs\n{whereabouts}{stderr}");
        }
        sleep(Duration::from_millis(5));
    };
    let stdout = stdout.join().expect("the reader does not panic");
    let stderr = stderr.join().expect("the reader does not panic");
    Outcome { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}
