//! `memfold attach` and `detach`: processes that run already are folded, keep every byte and every habit, and are left as they were.
//!
//! As root, as the agent needs CAP_SYS_PTRACE in the process that it is put into; where the tests do not run as root these say so and pass.

use memfold_e2e::agent::{
    compile, compile_with, may_attach, memfold_with_agent, must, rounds, Subject, HARSH,
};
use memfold_e2e::dialogue::Dialogue;
use memfold_e2e::redis::Redis;
use memfold_e2e::run::program;
use memfold_e2e::{preload_library, scratch, wait_until, LIMIT};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn start(file: &Path, arguments: &[&str]) -> Subject {
    Subject::start(Command::new(file).args(arguments))
}

/// Attached to and detached from again and again while it checks itself, it ends as it would have by itself.
fn endures(mut subject: Subject, times: usize) {
    subject.endure(rounds(times));
    let (status, said) = subject.finish();
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}

#[test]
fn a_program_with_threads_signals_and_forks_endures_it_many_times() {
    if may_attach() {
        let (_dir, file) = compile("attached.c", &[]);
        endures(start(&file, &["8", "48"]), 10);
    }
}

#[test]
fn a_program_may_be_called_like_memfolds_own() {
    if may_attach() {
        let (dir, file) = compile("attached.c", &[]);
        let named = dir.path().join("memfold-server");
        std::fs::rename(file, &named).unwrap();
        endures(start(&named, &["2", "16"]), 2);
    }
}

#[test]
fn a_program_whose_name_is_no_utf8_endures_it() {
    if may_attach() {
        let (dir, file) = compile("attached.c", &[]);
        let named = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
        std::fs::rename(file, &named).unwrap();
        endures(start(&named, &["2", "16"]), 2);
    }
}

#[test]
fn a_program_whose_library_was_replaced_is_folded_already() {
    if !may_attach() {
        return;
    }
    let (dir, file) = compile("attached.c", &[]);
    let (library, newer) = (dir.path().join("libmemfold.so"), dir.path().join("newer"));
    std::fs::copy(preload_library(), &library).unwrap();
    let subject = Subject::start(Command::new(file).args(["2", "16"]).env("LD_PRELOAD", &library));
    std::fs::copy(&library, &newer).unwrap();
    std::fs::rename(newer, library).unwrap();
    let refused = subject.memfold(&["attach", &subject.pid().to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("is folded already"), "{said}");
    assert_eq!(subject.traces().regions, 0);
    assert_eq!(subject.finish().0, Some(7));
}

/// A `/proc` in a directory, until this is dropped.
struct Proc(CString);

impl Proc {
    fn mount(dir: &Path) -> Proc {
        std::fs::create_dir(dir).unwrap();
        let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
        // SAFETY: three texts.
        let done =
            unsafe { libc::mount(c"proc".as_ptr(), path.as_ptr(), c"proc".as_ptr(), 0, std::ptr::null()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Proc(path)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        // SAFETY: a text.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_program_below_a_root_of_its_own_has_its_control_page_there() {
    if !may_attach() {
        return;
    }
    let (dir, _) = compile("attached.c", &["-static"]);
    std::fs::create_dir(dir.path().join("tmp")).unwrap();
    std::fs::set_permissions(dir.path().join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    let _proc = Proc::mount(&dir.path().join("proc"));
    let mut chroot = Command::new(program("chroot", "coreutils"));
    let subject = Subject::start(chroot.arg(dir.path()).args(["/subject", "2", "16"]));
    subject.attach();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", subject.pid())).unwrap();
    assert!(maps.contains(&format!("{}/tmp/memfold-", dir.path().display())), "a control page: {maps}");
    wait_until(LIMIT, "something is folded", || subject.folded() > 0);
    subject.detach();
    assert_eq!(subject.finish().0, Some(7));
}

#[test]
fn a_hundred_threads_are_stopped_by_one_of_them_only() {
    if may_attach() {
        let (_dir, file) = compile("attached.c", &[]);
        endures(start(&file, &["100", "64"]), 4);
    }
}

#[test]
fn the_only_thread_keeps_its_registers_and_its_signal_mask() {
    if may_attach() {
        let (_dir, file) = compile("attached.c", &[]);
        endures(start(&file, &["alone", "registers"]), 6);
    }
}

#[test]
fn the_only_thread_is_not_seen_to_be_woken_from_a_system_call() {
    if may_attach() {
        let (_dir, file) = compile("attached.c", &[]);
        endures(start(&file, &["alone", "epoll"]), 6);
    }
}

#[test]
fn a_static_program_endures_it() {
    if may_attach() {
        let (_dir, file) = compile("attached.c", &["-static"]);
        endures(start(&file, &["4", "24"]), 4);
    }
}

#[test]
fn a_server_in_go_endures_it() {
    let go = Path::new("/usr/local/go/bin/go");
    let Some(go) = [go, Path::new("/usr/bin/go")].into_iter().find(|go| go.is_file()) else {
        eprintln!("skipped: there is no Go here");
        return;
    };
    if !may_attach() {
        return;
    }
    let dir = scratch();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/cache.go");
    let file = dir.path().join("cache");
    let built = Command::new(go)
        .args(["build", "-o"])
        .arg(&file)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", dir.path().join("cache-of-go"))
        .env("HOME", dir.path())
        .status();
    assert!(built.expect("go can be executed").success());
    endures(start(&file, &["64"]), 4);
    let (status, said) = Started::start(&file, &["64"]).finish("");
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}

/// Both by a compiler's own way to static programs, from a source in `programs/`.
fn built(compiler: &mut Command, dir: &TempDir, source: &str) -> PathBuf {
    let file = dir.path().join("held");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    compiler.arg(source).current_dir(dir.path()).stdin(Stdio::null());
    assert!(compiler.status().expect("the compiler can be executed").success());
    file
}

#[test]
fn a_static_program_in_rust_endures_it_and_is_folded_from_its_start_on() {
    if !may_attach() {
        return;
    }
    let dir = scratch();
    let mut rustc = Command::new(program("rustc", "rustc"));
    rustc.args(["--edition=2021", "-O", "-C", "target-feature=+crt-static", "-o", "held"]);
    let file = built(&mut rustc, &dir, "held.rs");
    endures(start(&file, &["4"]), 4);
    let (status, said) = Started::start(&file, &["2"]).finish("");
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}

#[test]
fn a_static_program_in_zig_endures_it() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(zig) = std::env::split_paths(&path).map(|dir| dir.join("zig")).find(|zig| zig.is_file()) else {
        eprintln!("skipped: there is no Zig here");
        return;
    };
    if !may_attach() {
        return;
    }
    let dir = scratch();
    let mut zig = Command::new(zig);
    zig.args([
        "build-exe",
        "-OReleaseFast",
        "-fsingle-threaded",
        "-target",
        "x86_64-linux-musl",
        "--name",
        "held",
    ]);
    zig.args(["--cache-dir", "cache", "--global-cache-dir", "cache"]);
    endures(start(&built(&mut zig, &dir, "held.zig"), &[]), 4);
}

#[test]
fn redis_keeps_every_value_and_saves_all_of_them_from_a_child() {
    if !may_attach() {
        return;
    }
    let (runtime, dir) = (scratch(), scratch());
    let mut redis = Redis::start(dir.path(), |_| {});
    let ask = |redis: &mut Redis, words: &[&str]| String::from_utf8_lossy(&redis.ask(words)).into_owned();
    ask(&mut redis, &["DEBUG", "POPULATE", "60000", "key", "300"]);
    let digest = ask(&mut redis, &["DEBUG", "DIGEST"]);
    let pid = redis.pid().to_string();
    let memfold = |arguments: &[&str]| must(runtime.path(), &[arguments, &[&pid]].concat());
    for _ in 0..rounds(3) {
        memfold(&[["attach"].as_slice(), &HARSH].concat());
        redis.save_in_background();
        assert_eq!(ask(&mut redis, &["DEBUG", "DIGEST"]), digest);
        memfold(&["detach"]);
    }
    assert_eq!(ask(&mut redis, &["DEBUG", "DIGEST"]), digest);
    redis.shut_down();
    // What the child has written is all there is.
    let mut again = Redis::start(dir.path(), |_| {});
    assert_eq!(ask(&mut again, &["DEBUG", "DIGEST"]), digest);
    again.shut_down();
}

/// Holds 64 MiB, which it writes anew, or says that it needs no more (`MADV_FREE`), when it is told to.
const FREES: &str = r#"
import mmap, sys
held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def write():
    for at in range(0, len(held), 4096): held[at:at + 8] = b'%08d' % (at >> 12)
write()
print('ready', flush=True)
for line in sys.stdin:
    if line == 'write\n': write()
    if line == 'free\n': held.madvise(8)
    print(line, end='', flush=True)
"#;

/// The kernel reports what it is about to drop before it does so, and with `MADV_FREE` long before.
#[test]
fn what_the_kernel_is_about_to_drop_is_not_folded_meanwhile() {
    if !may_attach() {
        return;
    }
    const HELD: u64 = 64 << 20;
    let mut subject =
        Subject::start(Command::new(program("python3", "python3")).args(["-S", "-E", "-c", FREES]));
    let pid = subject.pid().to_string();
    subject.attach();
    let folded = |subject: &Subject| subject.counter("evicted_bytes");
    wait_until(LIMIT, "all is folded", || folded(&subject) >= HELD);
    assert!(subject.memfold(&["ctl", &pid, "set", "cold_age", "1h"]).status.success());
    subject.tell("write");
    wait_until(LIMIT, "it is counted as back", || folded(&subject) < HELD / 4);
    subject.tell("free");
    assert!(subject.memfold(&["ctl", &pid, "evict"]).status.success());
    assert!(folded(&subject) < HELD / 4, "what is about to be dropped was folded");
    subject.detach();
}

/// What was moved is brought back where it is now while its old place is somebody else's already, who drops what is there.
#[test]
fn moved_memory_keeps_every_byte_while_its_old_place_is_taken_and_dropped() {
    if !may_attach() {
        return;
    }
    const MIB: u64 = 96;
    let (_dir, file) = compile("followed.c", &[]);
    let mut subject = start(&file, &[&MIB.to_string()]);
    subject.attach();
    for _ in 0..rounds(3) {
        for what in ["move", "fork"] {
            wait_until(LIMIT, "it is folded", || subject.counter("evicted_bytes") >= MIB << 20);
            subject.tell(what);
        }
    }
    assert_eq!(subject.counter("lost"), 0);
    subject.detach();
    let (status, said) = subject.finish();
    assert_eq!((status, said.trim()), (Some(7), "fine"));
}

/// The longest mapping of a process that is registered for missing faults, bytes.
fn longest_registered(pid: u32) -> u64 {
    let (mut longest, mut len) = (0, 0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Size:", size, _] => len = size.parse::<u64>().unwrap_or(0) << 10,
            ["VmFlags:", ..] if words.contains(&"um") => longest = longest.max(len),
            _ => {}
        }
    }
    longest
}

/// The kernel enlarges and moves one mapping alone, and to register a part of one makes several of it.
#[test]
fn memory_that_is_folded_in_part_can_be_enlarged_and_moved() {
    if !may_attach() {
        return;
    }
    const MIB: u64 = 64;
    let (_dir, file) = compile("enlarged.c", &[]);
    let mut subject = start(&file, &[&MIB.to_string()]);
    subject.must(&["attach", "--cold-age", "400ms", "--max-cpu", "100", "--max-stall", "100"]);
    for what in ["enlarge", "move", "enlarge"].into_iter().cycle().take(3 * rounds(2)) {
        let in_part = |folded| (MIB << 18..MIB << 20).contains(&folded);
        wait_until(LIMIT, "a part of it is folded, and it is one mapping", || {
            in_part(subject.counter("evicted_bytes")) && longest_registered(subject.pid()) >= MIB << 20
        });
        subject.tell(what);
    }
    assert_eq!(subject.counter("lost"), 0);
    subject.detach();
    assert_eq!(subject.finish().0, Some(7));
}

#[test]
fn what_cannot_be_attached_to_is_refused_with_the_reason() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let subject = start(&file, &["2", "8"]);
    let refused = |arguments: &[&str]| {
        let output = subject.memfold(arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let pid = subject.pid().to_string();
    assert!(refused(&["detach", &pid]).contains("was not attached to"));
    subject.must(&["attach", "--dry-run"]);
    subject.attach();
    assert!(refused(&["attach", &pid]).contains("is folded already"));
    subject.detach();
    assert!(refused(&["attach", "2"]).contains("a thread of the kernel"), "process 2 is the kernel's");
    assert!(refused(&["attach", "4194303"]).contains("there is no process"));
    assert!(refused(&["attach", "no-such-name"]).contains("there is no process named 'no-such-name'"));
    let (status, _) = subject.finish();
    assert_eq!(status, Some(7));
}

#[test]
fn a_program_that_ends_while_it_is_attached_to_ends_as_it_would() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let subject = start(&file, &["4", "16"]);
    subject.attach();
    let (status, said) = subject.finish();
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}

/// A program that `memfold run` has started and put the agent into; told by its standard input to end.
struct Started {
    dialogue: Dialogue,
    runtime: TempDir,
}

impl Started {
    /// Waits until it is folded.
    fn start(file: &Path, arguments: &[&str]) -> Started {
        let runtime = scratch();
        let mut command = memfold_with_agent(runtime.path());
        command.arg("run").args(HARSH).arg("--").arg(file).args(arguments);
        let mut started = Started { dialogue: Dialogue::start(&mut command), runtime };
        assert_eq!(started.dialogue.hear(), "ready");
        wait_until(LIMIT, "it is folded from its start on", || started.folded() > 0);
        started
    }

    /// Pages that were set aside or folded, by the control page of the run.
    fn folded(&self) -> u64 {
        let output = memfold_with_agent(self.runtime.path()).args(["stat", "--json"]).output().unwrap();
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let parent = self.dialogue.pid().to_string();
        let is_child = |row: &&serde_json::Value| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", row["pid"])).unwrap_or_default();
            status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|found| found.trim() == parent))
        };
        let row = rows.as_array().into_iter().flatten().find(is_child);
        let pages = |name: &str| row.and_then(|row| row["pages"][name].as_u64()).unwrap_or(0);
        // What is in use all the time comes back before it is compressed.
        ["evicted", "second_chance"].map(pages).iter().sum()
    }

    /// What it says last, and its exit code.
    fn finish(self, line: &str) -> (Option<i32>, String) {
        let (status, said) = self.dialogue.finish(line);
        (status.code(), said)
    }
}

/// Fills an array, waits for a line, and adds up what is in it.
const AWK: &str = "BEGIN { for (i = 0; i < 40000; i++) a[i] = i \" some words \" i * 7; print \"ready\"; fflush(); getline; \
                   for (i = 0; i < 40000; i++) { n += length(a[i]); s += substr(a[i], 1, 3) } print n, s }";

#[test]
fn static_programs_are_folded_from_their_start_on_and_end_as_they_would() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &["-static"]);
    let (status, said) = Started::start(&file, &["2", "16"]).finish("");
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
    let busybox = program("busybox", "busybox-static");
    let plain = Command::new(&busybox).args(["awk", AWK]).stdin(Stdio::null()).output().unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    let (status, said) = Started::start(&busybox, &["awk", AWK]).finish("");
    assert_eq!((status, format!("ready\n{said}")), (Some(0), plain));
}

/// Where the kernel's headers are, behind those of musl.
const KERNEL: [&str; 4] = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];

#[test]
fn a_program_for_musl_endures_it_and_is_folded_from_its_start_on() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile_with(&program("musl-gcc", "musl-tools"), "attached.c", &KERNEL);
    endures(start(&file, &["4", "24"]), 3);
    let (status, said) = Started::start(&file, &["2", "16"]).finish("");
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}
