//! What the libraries export: a symbol of the preload library's is found before that of any other library, whoever meant it.

use memfold_bench::launch::preload;
use memfold_e2e::run::{finish, program, run_plain};
use memfold_e2e::{preload_library, scratch, LIMIT};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions that a library defines, with the addresses that they have there. Those that glibc keeps to itself are left out.
fn functions_of(library: &Path) -> Vec<(String, String)> {
    let mut nm = Command::new(program("nm", "binutils"));
    nm.args(["-D", "--defined-only"]).arg(library);
    let table = String::from_utf8(run_plain(nm, LIMIT).expect_success("nm").stdout).unwrap();
    let public = table.lines().filter(|line| !line.ends_with("@GLIBC_PRIVATE"));
    let function = |line: &str| {
        let [address, kind, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let name = name.split('@').next()?;
        ["T", "W"].contains(&kind).then(|| (name.to_owned(), address.to_owned()))
    };
    public.filter_map(function).collect()
}

fn names(functions: &[(String, String)]) -> BTreeSet<&str> {
    functions.iter().map(|(name, _)| name.as_str()).collect()
}

fn libcs() -> Vec<(String, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6"));
    functions_of(Path::new(libc.expect("tests are linked to libc")))
}

/// The library of `memfold.h`, which is built beside the other.
fn client_library() -> PathBuf {
    preload_library().with_file_name("libmemfold_client.so")
}

#[test]
fn no_other_public_name_leads_to_a_function_of_libc_that_is_replaced() {
    let (libcs, ours) = (libcs(), functions_of(&preload_library()));
    let ours = names(&ours);
    let replaced: HashSet<_> =
        libcs.iter().filter(|(name, _)| ours.contains(name.as_str())).map(|(_, at)| at).collect();
    assert!(replaced.len() > 40, "{replaced:?}");
    let missed: Vec<_> =
        libcs.iter().filter(|(name, at)| replaced.contains(at) && !ours.contains(name.as_str())).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_program_of_memfold_h_runs_beside_the_preloaded_allocator() {
    let (clients, ours) = (functions_of(&client_library()), functions_of(&preload_library()));
    assert!(names(&clients).contains("memfold_stats"), "{clients:?}");
    assert!(names(&clients).is_disjoint(&names(&ours)), "{clients:?}");
    let dir = scratch();
    std::os::unix::fs::symlink(client_library(), dir.path().join("libmemfold_client.so.0")).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-c");
    let fold = dir.path().join("fold");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.arg("-o").arg(&fold).arg(package.join("examples/fold.c")).arg("-I").arg(package.join("include"));
    compiler.arg(dir.path().join("libmemfold_client.so.0"));
    run_plain(compiler, LIMIT).expect_success("cc fold.c");
    let mut command = Command::new(fold);
    preload(&mut command, &preload_library());
    command.env("LD_LIBRARY_PATH", dir.path()).env("MEMFOLD_RUNTIME_DIR", dir.path().join("runtime"));
    let said = finish(command, LIMIT).expect_success("fold").stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.ends_with("every record read back, 0 pages lost\n"), "{said}");
}
