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
