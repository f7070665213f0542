//! The C example, against the shared and the static library, as a user of C builds it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo puts the libraries of this package when it builds the package's tests.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

fn build(dir: &Path, source: &str, link: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join("program");
    // By its name for programs, which `make install` gives it.
    let named = dir.join("libmemfold_client.so.0");
    if !named.exists() {
        std::os::unix::fs::symlink(libraries().join("libmemfold_client.so"), named).unwrap();
    }
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(package.join(source))
        .arg("-I")
        .arg(package.join("include"))
        .arg("-L")
        .arg(libraries())
        .args(link)
        .output()
        .expect("cc is one of the packages that make installs");
    assert!(built.status.success(), "{source}: {}", String::from_utf8_lossy(&built.stderr));
    program
}

fn command(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", dir).env("MEMFOLD_RUNTIME_DIR", dir.join("runtime"));
    command
}

fn build_and_run(how: &str, link: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "examples/fold.c", link);
    let run = command(&program, dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{how}: {said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("32 MiB folded into"), "{how}: {said}");
    assert!(said.contains("every record read back, 0 pages lost"), "{how}: {said}");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("runtime")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{how}: {left:?} was left behind");
}

#[test]
fn a_c_program_is_kept_at_a_limit_by_the_policy_that_its_environment_names() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "tests/policy.c", &["-lmemfold_client"]);
    let run = |policy| {
        let mut command = command(&program, dir.path());
        let variables = [
            ("POLICY", policy),
            ("RESIDENT_LIMIT", "8M"),
            ("COLD_AGE", "1h"),
            ("MAX_STALL", "100"),
            ("MAX_CPU", "100"),
        ];
        let output =
            command.envs(variables.map(|(name, value)| (format!("MEMFOLD_{name}"), value))).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(run("clock"), (Some(0), "every word read back, 0 pages lost\n".into()));
    assert_eq!(run("no policy"), (Some(1), format!("not started: {}\n", -libc::EINVAL)));
}

#[test]
fn the_c_example_folds_its_table_through_the_shared_library() {
    build_and_run("shared", &["-lmemfold_client"]);
}

#[test]
fn the_c_example_folds_its_table_through_the_static_library() {
    build_and_run("static", &["-l:libmemfold_client.a", "-lpthread", "-ldl", "-lm", "-lgcc_s"]);
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = include_str!("../include/memfold.h");
    let exported = include_str!("../src/lib.rs");
    let functions: Vec<&str> =
        exported.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    assert!(functions.len() >= 6);
    for function in functions {
        assert!(header.contains(&format!("int {function}(")), "{function} is not in memfold.h");
    }
}
