//! Real programs that cannot be folded run as without memfold, and it is said why: statically linked, set-user-ID, and
//! confined by a system call filter of their own.
//!
//! The obstacles one by one, on small programs, are tested in `cli.rs` and `cases.rs`.

use memfold_e2e::run::{self, program};
use memfold_e2e::{installed_for_all, memfold, scratch, LIMIT};
use memfold_pager::control::Mode;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).env("LC_ALL", "C").output().expect("the program can be executed")
}

/// That `found` is what `expected` is, and gives `reason` besides.
fn expect_the_same(found: &Output, expected: &Output, reason: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(!expected.stdout.is_empty(), "it printed nothing: {}", text(&expected.stderr));
    assert_eq!(text(&found.stdout), text(&expected.stdout));
    assert_eq!(found.status, expected.status);
    assert!(text(&found.stderr).contains(reason), "{}", text(&found.stderr));
}

#[test]
fn ldconfig_is_static_and_runs_plainly() {
    // Ubuntu puts a script in front of it.
    let found = ["/sbin/ldconfig.real", "/sbin/ldconfig"].into_iter().find(|file| Path::new(file).is_file());
    let ldconfig = found.expect("libc-bin has ldconfig");
    let expected = output(Command::new(ldconfig).arg("-p"));
    let runtime = scratch();
    let folded = output(memfold(runtime.path()).args(["run", "--", ldconfig, "-p"]));
    expect_the_same(&folded, &expected, "statically linked");
}

#[test]
fn passwd_is_set_user_id_and_keeps_its_rights() {
    let installed = installed_for_all();
    let passwd = program("passwd", "passwd");
    // It reads the shadow file, which only root may: with the rights of its file, or not at all.
    let command = |start: &[&str]| {
        let mut command = installed.command();
        command.args(["run", "--quiet", "--", "env"]).args(start).args([
            "sh",
            "-c",
            "passwd -S \"$(id -un)\"",
        ]);
        command
    };
    let expected = output(&mut command(&["-u", "LD_PRELOAD"]));
    expect_the_same(&output(&mut command(&[])), &expected, "");
    let direct = output(installed.command().args(["run", "--"]).arg(&passwd).arg("-S"));
    expect_the_same(&direct, &expected, "set-user-ID");
}

#[test]
fn what_runs_inside_valgrind_runs_plainly() {
    let (runtime, valgrind) = (scratch(), program("valgrind", "valgrind"));
    let inside = ["-q", "sh", "-c", "for n in $(seq 9); do :; done; echo done"];
    let expected = output(Command::new(&valgrind).args(inside));
    let harsh = ["run", "--start-at", "0", "--cold-age", "20ms", "--max-cpu", "100", "--"];
    let folded = output(memfold(runtime.path()).args(harsh).arg(&valgrind).args(inside));
    expect_the_same(&folded, &expected, "inside Valgrind");
}

#[test]
fn man_confines_its_helpers_and_formats_the_same_page() {
    let home = scratch();
    let page = ".TH PAGE 1\n.SH NAME\npage \\- words\n.SH DESCRIPTION\nSome\n.B bold\nwords.\n";
    std::fs::write(home.path().join("page.1"), page).unwrap();
    let command = || {
        let mut command = Command::new(program("man", "man-db"));
        command.args(["-l", "page.1"]).current_dir(home.path()).env("LC_ALL", "C");
        command
    };
    let plain = run::run_plain(command(), LIMIT).expect_success("man, plain");
    assert!(plain.stdout.len() > 100, "man printed next to nothing: {}", plain.stderr);
    let folding = run::harsh();
    let folded = run::run_folded(command(), &folding, LIMIT).expect_success("man, folded");
    assert_eq!(String::from_utf8_lossy(&folded.stdout), String::from_utf8_lossy(&plain.stdout));
    let modes = run::modes(&folding);
    let confined = modes.iter().any(|(mode, reason)| *mode == Mode::Off && reason.contains("seccomp"));
    // Under a filter already, as in many containers, man sets none of its own.
    assert!(confined || filtered_already(), "man confined nothing: {modes:?}");
}

/// Whether the kernel filters the system calls of the tests themselves.
fn filtered_already() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'))
}

/// Has the kernel end the process, and what it starts, at a system call of this number, as a list of those that a service may make does.
fn forbid(command: &mut Command, number: Option<libc::c_long>) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let answer = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // No call has the last number.
    let number = number.map_or(u32::MAX, |number| number as u32);
    let mut steps = [
        // The number of the call stands first in what a filter sees (seccomp(2)).
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, number),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let confine = move || {
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: a filter of the process that is executed next, or its end.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        set.then_some(()).ok_or_else(std::io::Error::last_os_error)
    };
    // SAFETY: two system calls, which are safe after a fork.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, confine) };
}

#[test]
fn under_a_filter_that_ends_who_folds_programs_run_plainly_and_under_another_they_are_folded() {
    let home = scratch();
    let summary = home.path().join("summary.json");
    let python = program("python3", "python3");
    let run = |number| {
        let mut command = memfold(home.path());
        // One of the pager's threads has a line to say: there is no such tier.
        command.env("MEMFOLD_TIER", "disk=/nonexistent").args(["run", "--start-at", "0", "--summary"]);
        command
            .arg(&summary)
            .arg("--")
            .arg(&python)
            .args(["-c", "import time; time.sleep(0.5); print('ran'); exit(7)"]);
        forbid(&mut command, number);
        let found = output(&mut command);
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!((found.stdout.as_slice(), found.status.code()), (&b"ran\n"[..], Some(7)), "{said}");
        let summary = std::fs::read_to_string(&summary).unwrap();
        (said, serde_json::from_str::<serde_json::Value>(&summary).unwrap()["reason"].clone())
    };
    for (number, name) in [
        (libc::SYS_pidfd_getfd, "pidfd_getfd"),
        (libc::SYS_process_vm_writev, "process_vm_writev"),
        (libc::SYS_userfaultfd, "userfaultfd"),
    ] {
        let (said, reason) = run(Some(number));
        let named = format!("ends a process that calls {name}:");
        assert!(
            said.contains(&named) && reason.as_str().is_some_and(|why| why.contains(&named)),
            "{said}{reason}"
        );
    }
    let (said, reason) = run(None);
    assert!(reason.is_null() && !said.contains("runs plainly"), "{said}{reason}");
}
