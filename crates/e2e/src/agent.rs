//! Programs that `memfold attach` is tried on: how they are started, attached to and detached from, and what they leave behind.

use crate::dialogue::Dialogue;
use crate::run::{copy_program, program};
use crate::{is_root, scratch, LIMIT};
use memfold_pager::plan::MAGIC;
use memfold_sys::thread::agent_name;
use serde_json::Value;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// What makes the pager fold whatever is not in use this very moment.
pub const HARSH: [&str; 6] = ["--cold-age", "10ms", "--max-cpu", "100", "--max-stall", "100"];

/// How often a program is attached to and detached from: what `ROUNDS` says, else as often as every run of the tests can afford.
///
/// # Panics
/// If that is no number.
pub fn rounds(usual: usize) -> usize {
    std::env::var("ROUNDS").map_or(usual, |rounds| rounds.parse().expect("ROUNDS is a number"))
}

/// The absolute path of the agent: the value of `MEMFOLD_AGENT`, else beside the preload library.
///
/// # Panics
/// If it is not there, with the command that builds it.
pub fn agent() -> PathBuf {
    let beside = || crate::preload_library().with_file_name("memfold-agent");
    let path = std::env::var_os("MEMFOLD_AGENT").map_or_else(beside, PathBuf::from);
    path.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{}: {error}. Build it with `cargo build --release -p memfold-agent`, or name it in MEMFOLD_AGENT",
            path.display()
        )
    })
}

/// A program that runs, says `ready` once it does, and ends by itself when its standard input does. It is killed when this is dropped.
pub struct Subject {
    program: Dialogue,
    runtime: TempDir,
}

/// Whether tests may attach; says so if not.
pub fn may_attach() -> bool {
    if !is_root() {
        eprintln!("skipped: only root can attach");
    }
    is_root()
}

/// A C program of this crate, compiled, and the directory that it lies in.
///
/// # Panics
/// It cannot be compiled.
pub fn compile(source: &str, options: &[&str]) -> (TempDir, PathBuf) {
    compile_with(&program("cc", "gcc"), source, options)
}

/// The same by another compiler.
///
/// # Panics
/// As [`compile`].
pub fn compile_with(compiler: &Path, source: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let dir = scratch();
    let file = dir.path().join("subject");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-pthread"]).args(options).arg("-o").arg(&file).arg(source);
    assert!(command.status().expect("the compiler can be executed").success());
    (dir, file)
}

/// What can be seen of a process from outside that an agent would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// Its threads that have names of memfold's.
    pub agents: usize,
    /// Its open files of kinds that an agent opens; others it may open and close all the time.
    pub descriptors: Vec<String>,
    /// Mappings that are registered with a userfaultfd.
    pub registered: usize,
    /// Those that are kept from children. V8 has some hundred, and not always as many.
    pub kept: usize,
    /// Those that are executable and of no file. Programs that make code have some, and not always as many.
    pub code: usize,
    /// Those that begin as the agent's region does.
    pub regions: usize,
}

impl Subject {
    /// Starts it, and waits until it is ready.
    pub fn start(command: &mut Command) -> Subject {
        let mut program = Dialogue::start(command);
        assert_eq!(program.hear(), "ready");
        Subject { program, runtime: scratch() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Has it do what a line says, which it answers with the same line.
    pub fn tell(&mut self, line: &str) {
        self.program.tell(line);
    }

    /// The `memfold` command, with the agent.
    pub fn memfold(&self, arguments: &[&str]) -> Output {
        memfold_with_agent(self.runtime.path()).args(arguments).output().expect("memfold can be executed")
    }

    /// A command of memfold's on this process, which must succeed.
    pub fn must(&self, arguments: &[&str]) -> String {
        let pid = self.pid().to_string();
        let output = must(self.runtime.path(), &[arguments, &[&pid]].concat());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Attaches, to fold as much as can be.
    pub fn attach(&self) {
        self.attach_with(&[]);
    }

    /// The same with more options.
    pub fn attach_with(&self, options: &[&str]) {
        self.must(&[["attach"].as_slice(), &HARSH, options].concat());
    }

    /// Detaches.
    pub fn detach(&self) {
        self.must(&["detach"]);
    }

    /// A counter of its control page.
    pub fn counter(&self, name: &str) -> u64 {
        let pid = self.pid().to_string();
        let output = self.memfold(&["stat", "--json", &pid]);
        counter(&output, name)
    }

    /// How much was folded, or set aside: pages and bytes, for whether there is anything.
    pub fn folded(&self) -> u64 {
        ["evicted", "second_chance", "aside_bytes"].map(|name| self.counter(name)).iter().sum()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.program.process().try_wait().expect("it is ours").is_none()
    }

    /// What can be seen of it.
    pub fn traces(&self) -> Traces {
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        // A name may be of any bytes.
        let read =
            |path| String::from_utf8_lossy(&fs::read::<PathBuf>(path).unwrap_or_default()).into_owned();
        let threads = fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
        let agents = threads.filter(|task| agent_name::is(read(task.path().join("comm")).trim_end())).count();
        let files = fs::read_dir(proc.join("fd")).into_iter().flatten().flatten();
        let mut descriptors: Vec<String> = files
            .filter_map(|file| {
                Some(format!("{:?} {}", file.file_name(), fs::read_link(file.path()).ok()?.display()))
            })
            .collect();
        let of_agent = ["userfaultfd", "io_uring", "/proc", "memfold"];
        descriptors.retain(|file| of_agent.iter().any(|kind| file.contains(kind)));
        descriptors.sort();
        let memory = fs::File::open(proc.join("mem")).ok();
        let begins_as_region = |header: &str| {
            let start = header.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
            let mut word = [0; 8];
            let read =
                memory.as_ref().zip(start).map(|(memory, start)| memory.read_exact_at(&mut word, start));
            read.is_some_and(|read| read.is_ok()) && u64::from_le_bytes(word) == MAGIC
        };
        let (mut registered, mut kept, mut code, mut regions, mut header) = (0, 0, 0, 0, String::new());
        for line in read(proc.join("smaps")).lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                let is_anonymous = header.split_whitespace().count() == 5;
                code += usize::from(is_anonymous && header.contains("r-xp"));
                regions += usize::from(is_anonymous && header.contains(" rw") && begins_as_region(&header));
                let has = |wanted: &[&str]| usize::from(flags.split(' ').any(|flag| wanted.contains(&flag)));
                registered += has(&["um", "uw"]);
                kept += has(&["dc"]);
            } else if line.starts_with(|c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
                header = line.to_owned();
            }
        }
        Traces { agents, descriptors, registered, kept, code, regions }
    }

    /// Attached to and detached from again and again, it goes on, and something is folded of it; then it has no trace of that.
    pub fn endure(&mut self, rounds: usize) {
        let before = self.traces();
        assert_eq!((before.agents, before.regions), (0, 0));
        let mut folded = 0;
        for round in 0..rounds {
            self.attach();
            if round % 3 == 0 {
                crate::wait_until(LIMIT, "something is folded", || self.folded() > 0);
            }
            folded += self.folded();
            assert_eq!(self.counter("lost"), 0);
            self.detach();
            assert!(self.runs(), "it has ended by itself");
        }
        assert_ne!(folded, 0);
        // What the kernel makes of a mapping that was cut in two it joins again; the program's own changes come between.
        crate::wait_for(LIMIT, || {
            let now = self.traces();
            // What the program itself has of these is not always as much.
            let other = |before: usize, now: usize| if before > 0 { before } else { now };
            let (kept, code) = (other(before.kept, now.kept), other(before.code, now.code));
            match (Traces { kept, code, ..now.clone() }) == before {
                true => Ok(()),
                false => Err(format!("as before: there was {before:?}, and there is still {now:?}")),
            }
        });
    }

    /// Ends it: its status, and what it said last.
    pub fn finish(self) -> (Option<i32>, String) {
        let (status, said) = self.program.finish("");
        (status.code(), said)
    }
}

/// The first counter of that name in what `memfold stat --json` has printed; 0 where there is none.
pub fn counter(stat: &Output, name: &str) -> u64 {
    fn find(value: &Value, name: &str) -> Option<u64> {
        match value {
            Value::Object(map) => {
                map.get(name).and_then(Value::as_u64).or_else(|| map.values().find_map(|v| find(v, name)))
            }
            Value::Array(list) => list.iter().find_map(|v| find(v, name)),
            _ => None,
        }
    }
    let json: Value = serde_json::from_slice(&stat.stdout).unwrap_or_default();
    find(&json, name).unwrap_or(0)
}

/// A command of memfold's with the agent and with control pages in `runtime`, which must succeed.
///
/// # Panics
/// It does not, with what it said.
pub fn must(runtime: &Path, arguments: &[&str]) -> Output {
    let output = memfold_with_agent(runtime).args(arguments).output().expect("memfold can be executed");
    assert!(output.status.success(), "memfold {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The `memfold` command with the agent, with control pages in `runtime`.
pub fn memfold_with_agent(runtime: &Path) -> Command {
    let mut command = crate::memfold(runtime);
    command.env("MEMFOLD_AGENT", agent());
    command
}

/// The number of the capability that it needs (capabilities(7)).
pub const CAP_SYS_PTRACE: u32 = 19;

/// The program that makes handshakes, with its capability, as `memfold setup` installs it for a group; the capability's number is another one for a bad one.
///
/// # Panics
/// It cannot be.
pub fn install_handshake(place: &Path, group: u32, capability: u32) {
    copy_program(&agent().with_file_name("memfold-handshake"), place);
    chown(place, Some(0), Some(group)).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o750)).unwrap();
    let words = [0x0200_0001u32, 1 << capability, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = CString::new(place.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path, a name, and so many bytes.
    let given = unsafe {
        libc::setxattr(path.as_ptr(), c"security.capability".as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0)
    };
    assert_eq!(given, 0, "{}", std::io::Error::last_os_error());
}
