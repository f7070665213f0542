//! Attacks on what memfold should not believe. Each takes root, to be two users; without it a test says so and does nothing.

use e2e::run::program;
use e2e::{is_root, memfold, preload_library, scratch};
use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A user to whom nothing here belongs.
const STRANGER: u32 = 61_302;

fn may_be_two_users() -> bool {
    let root = is_root();
    if !root {
        eprintln!("skipped: only root can be two users");
    }
    root
}

/// A directory that everybody can look into, and one in it that nobody but root can.
fn scene() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let private = dir.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    (dir, private)
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// A program that is linked with the library, which everybody may read.
fn linked(dir: &Path) -> PathBuf {
    let (executable, library) = (dir.join("linked"), dir.join("libmemfold.so"));
    fs::copy(preload_library(), &library).unwrap();
    fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/linked.c");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin-malloc", "-o"])
        .arg(&executable)
        .arg(source);
    let status = compiler.arg(&library).arg(format!("-Wl,-rpath,{}", dir.display())).status().unwrap();
    assert!(status.success());
    executable
}

fn run(command: &mut Command, control_dir: &Path) -> Output {
    command.env("MEMFOLD_PAGER", "on").env("MEMFOLD_CONTROL_DIR", control_dir).env("MEMFOLD_START_AT", "0");
    command.env("MEMFOLD_STATS", "1").output().unwrap()
}

#[test]
fn a_library_that_another_user_can_change_is_not_used() {
    if !may_be_two_users() {
        return;
    }
    let (dir, _) = scene();
    let library = dir.path().join("libmemfold.so");
    fs::copy(preload_library(), &library).unwrap();
    let runtime = scratch();
    let run = || {
        let mut command = memfold(runtime.path());
        let output =
            command.args(["run", "--quiet", "--", "/bin/echo", "ran"]).env("MEMFOLD_LIB", &library).output();
        let output = output.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(run(), (Some(0), "ran\n".to_owned()));
    let refused = |why: &str| {
        let (code, said) = run();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(library.to_str().unwrap()) && said.contains(why), "{said}");
    };
    chown(&library, Some(STRANGER), None).unwrap();
    refused(&format!("belongs to user {STRANGER}"));
    chown(&library, Some(0), None).unwrap();
    chown(dir.path(), Some(STRANGER), None).unwrap();
    refused(&format!("belongs to user {STRANGER}"));
    chown(dir.path(), Some(0), None).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    refused("writable by everybody");
}

#[test]
fn a_set_user_id_program_that_links_the_library_believes_nothing_of_the_environment() {
    if !may_be_two_users() {
        return;
    }
    let (dir, private) = scene();
    let executable = linked(dir.path());
    fs::set_permissions(&executable, Permissions::from_mode(0o4755)).unwrap();
    let output = run(Command::new(&executable).uid(STRANGER).gid(STRANGER).current_dir("/"), &private);
    let said = String::from_utf8_lossy(&output.stdout);
    if said.starts_with(&STRANGER.to_string()) {
        eprintln!("skipped: the file system gives no program its owner's rights");
        return;
    }
    assert_eq!(said, "0 1\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(entries(&private), 0, "it made files of root's where another user said");
    // Started by root itself it does what it is told.
    let output = run(&mut Command::new(&executable), &private);
    assert!(output.status.success() && !output.stderr.is_empty() && entries(&private) == 1, "{output:?}");
}
