//! Where there is no room, where files may not grow, and where nobody reads what is said: programs run as they would without
//! memfold, and every exit code is what it was.

use memfold_e2e::run::{finish, program, run_plain, Outcome};
use memfold_e2e::{memfold, scratch, LIMIT};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command with control pages in a file system of 64 KiB of its own, which `prepare`, a line for the shell with `$1` for its
/// directory, can fill; `command` follows there.
fn in_little_room(prepare: &str, arguments: &[&str]) -> (tempfile::TempDir, Command) {
    let home = scratch();
    let memfold = memfold(home.path());
    // SAFETY: always succeeds.
    let options = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
    let mut command = Command::new(program("unshare", "util-linux"));
    let mount = "mount -t tmpfs -o size=64k,mode=700 none \"$1\"";
    command.args([options, "sh", "-c", &format!("{mount} && {prepare} && shift && exec \"$@\"")]);
    command.arg("sh").arg(home.path()).arg(memfold.get_program()).args(arguments);
    for (name, value) in memfold.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    (home, command)
}

const FILL: &str = "{ head -c 1M /dev/zero >\"$1/fill\" 2>/dev/null || true; }";

#[test]
fn without_room_for_control_pages_programs_run_execute_and_fork() {
    let script = "ls /etc/passwd; sh -c 'cat /etc/hostname >/dev/null; exit 7'";
    let (_home, command) = in_little_room(FILL, &["run", "--quiet", "--", "sh", "-c", script]);
    let Outcome { status, stdout, stderr } = finish(command, LIMIT);
    assert_eq!((status.code(), stdout.as_slice()), (Some(7), b"/etc/passwd\n".as_slice()), "{stderr}");
}

#[test]
fn children_that_are_forked_when_there_is_no_room_any_more_keep_every_byte() {
    let room = built("room");
    let elsewhere = scratch();
    let summary = elsewhere.path().join("summary.json");
    let harsh = ["--cold-age", "100ms", "--max-cpu", "100", "--max-stall", "100"];
    let mut arguments = vec!["run", "--quiet", "--summary", summary.to_str().unwrap()];
    arguments.extend(harsh);
    // The program itself fills what is left: $1 of the shell is gone by then.
    let (home, mut command) = in_little_room("true", &arguments);
    command.arg("--").arg(room).arg(home.path().join("fill"));
    let outcome = finish(command, LIMIT);
    assert_eq!(outcome.stdout, b"whole\n", "{}\n{}", outcome.status, outcome.stderr);
    let summary: Value = serde_json::from_slice(&fs::read(summary).unwrap()).unwrap();
    assert!(summary["pages"]["evicted"].as_u64() > Some(0), "{summary}");
    assert_eq!(summary["pages"]["lost"], 0);
}

fn built(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&out).arg(source);
    run_plain(compiler, LIMIT).expect_success("cc");
    out
}

/// Has the command's process have no more than this of a resource.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a system call, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
}

#[test]
fn a_program_may_map_nearly_all_that_its_limit_on_address_space_allows() {
    let address_space = built("address_space");
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
        let mapped = |start: Option<Command>, argument: &str| {
            let mut command = start.unwrap_or_else(|| Command::new("env"));
            command.arg(&address_space).arg(argument);
            limited(&mut command, resource, 2 << 30);
            let outcome = finish(command, LIMIT);
            let blocks: u64 =
                String::from_utf8(outcome.stdout).unwrap().trim().parse().expect(&outcome.stderr);
            blocks
        };
        let home = scratch();
        let mut start = memfold(home.path());
        start.args(["run", "--quiet", "--cold-age", "100ms", "--max-cpu", "100", "--max-stall", "100", "--"]);
        let (plain, folded) = (mapped(None, ""), mapped(Some(start), "folded"));
        assert!(folded * 8 >= plain * 7, "{folded} of {plain}");
    }
}

#[test]
fn a_limit_on_the_length_of_files_ends_neither_the_program_nor_the_launcher() {
    for bytes in [0, 1, 4096, 12 << 10, 16 << 10, 1 << 20] {
        let home = scratch();
        let mut command = memfold(home.path());
        command.args(["run", "--summary"]).arg(home.path().join("summary.json"));
        command.args(["--", "sh", "-c", "cat /etc/passwd >/dev/null; exit 5"]);
        limited(&mut command, libc::RLIMIT_FSIZE, bytes);
        let outcome = finish(command, LIMIT);
        assert_eq!(outcome.status.code(), Some(5), "{bytes}: {}\n{}", outcome.status, outcome.stderr);
    }
}

#[test]
fn a_program_gets_the_signal_of_its_own_writing_beyond_the_limit() {
    let script = "ulimit -f 1; head -c 4k /dev/zero >\"$0\"; echo $?";
    let code = |start: &[&str]| {
        let home = scratch();
        let mut command = memfold(home.path());
        if start.is_empty() {
            command = Command::new("sh");
        }
        command.args(start).args(["-c", script]).arg(home.path().join("file"));
        String::from_utf8(finish(command, LIMIT).stdout).unwrap()
    };
    assert_eq!(code(&["run", "--quiet", "--", "sh"]), code(&[]));
}

/// Places to write to that take nothing.
fn closed_ends() -> [(&'static str, Stdio); 2] {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    [("/dev/full", full.into()), ("a pipe that nobody reads", writer.into())]
}

/// The exit code of `memfold` with these arguments, and standard error as it is given.
fn code(arguments: &[&str], variables: &[(&str, &str)], stderr: Stdio) -> Option<i32> {
    let home = scratch();
    let mut command = memfold(home.path());
    command.args(arguments).envs(variables.iter().copied());
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status().unwrap();
    status.code()
}

#[test]
fn a_standard_error_that_takes_nothing_changes_no_exit_code() {
    let cases: [&[&str]; 9] = [
        &["run", "--", "sh", "-c", "exit 7"],
        &["run", "--daemon", "--", "sh", "-c", "exit 7"],
        &["run", "--", "no-such-program"],
        &["run", "--cold-age", "soon", "--", "true"],
        &["stat", "no-such-program"],
        &["ctl", "4194303", "pause"],
        &["doctor"],
        &["daemon", "--socket", "/nonexistent/socket"],
        &["trace", "info", "/nonexistent/trace"],
    ];
    for arguments in cases {
        let expected = code(arguments, &[], Stdio::null());
        assert!(expected.is_some(), "{arguments:?}");
        for (name, stderr) in closed_ends() {
            assert_eq!(code(arguments, &[], stderr), expected, "{arguments:?}, standard error is {name}");
        }
    }
}

#[test]
fn what_the_library_says_to_nobody_ends_no_program() {
    // The complaint is the library's, in the program and on its own thread.
    let variables = [("MEMFOLD_COLD_AGE", "soon"), ("MEMFOLD_STATS", "1")];
    for (name, stderr) in closed_ends() {
        let found = code(&["run", "--", "sh", "-c", "exit 7"], &variables, stderr);
        assert_eq!(found, Some(7), "standard error is {name}");
    }
}

#[test]
fn a_standard_output_that_nobody_reads_changes_no_exit_code_and_one_that_is_full_is_named() {
    let doctor = |stdout: Stdio| {
        let home = scratch();
        memfold(home.path()).arg("doctor").stdout(stdout).stderr(Stdio::piped()).output().unwrap()
    };
    let expected = doctor(Stdio::null()).status.code();
    let [(_, full), (_, closed)] = closed_ends();
    let closed = doctor(closed);
    assert_eq!((closed.status.code(), closed.stderr.as_slice()), (expected, b"".as_slice()));
    let full = doctor(full);
    assert!(String::from_utf8_lossy(&full.stderr).contains("cannot write to standard output"));
    assert_eq!(full.status.code(), if expected == Some(0) { Some(1) } else { expected });
}

#[test]
fn a_watch_that_nobody_reads_any_more_ends() {
    let home = scratch();
    let mut command = memfold(home.path());
    let [_, (_, closed)] = closed_ends();
    let mut watch = command.args(["stat", "--watch=50ms"]).stdout(closed).spawn().unwrap();
    assert!(watch.wait().unwrap().success());
}
