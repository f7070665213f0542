//! What the libraries export: a symbol of the preload library's is found before that of any other library, whoever meant it.

use memfold_bench::launch::preload;
use memfold_e2e::run::{finish, harsh, program, run_folded, run_plain};
use memfold_e2e::{preload_library, scratch, LIMIT};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library's dynamic symbols, as `nm` prints them: those that it defines, or those that it asks for.
fn symbols(which: &str, library: &Path) -> String {
    let mut nm = Command::new(program("nm", "binutils"));
    nm.args(["-D", which]).arg(library);
    String::from_utf8(run_plain(nm, LIMIT).expect_success("nm").stdout).unwrap()
}

/// The functions that a library defines, with the addresses that they have there. Those that glibc keeps to itself are left out.
fn functions_of(library: &Path) -> Vec<(String, String)> {
    let table = symbols("--defined-only", library);
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
fn the_library_takes_no_name_but_libcs_and_its_own() {
    let (libcs, ours) = (libcs(), functions_of(&preload_library()));
    let others: Vec<_> = names(&ours).difference(&names(&libcs)).copied().collect();
    // Operators of TCMalloc's, and what `memfold_alloc.h` has.
    let expected = [
        "_Znam12__hot_cold_t",
        "_ZnamRKSt9nothrow_t12__hot_cold_t",
        "_ZnamSt11align_val_t12__hot_cold_t",
        "_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t",
        "_Znwm12__hot_cold_t",
        "_ZnwmRKSt9nothrow_t12__hot_cold_t",
        "_ZnwmSt11align_val_t12__hot_cold_t",
        "_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t",
        "memfold_alloc_stats",
    ];
    assert_eq!(others, expected);
}

#[test]
fn what_a_program_need_not_have_is_not_asked_of_it() {
    let asked = symbols("--undefined-only", &preload_library());
    let needed = asked.lines().filter_map(|line| line.trim().strip_prefix("U "));
    // Up to glibc 2.33 these are in libraries of their own.
    let elsewhere: Vec<_> =
        needed.filter(|name| ["pthread_", "dl"].iter().any(|start| name.starts_with(start))).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    // Functions of the program's own that zstd would call.
    let clients = symbols("--undefined-only", &client_library());
    assert!(!asked.contains("ZSTD_") && !clients.contains("ZSTD_"), "{asked}{clients}");
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

/// Runs a program plainly, with the allocator alone and folded: it ends with this status each time, having said the same, which it returns.
fn says(command: impl Fn() -> Command, status: i32) -> String {
    let folding = harsh();
    let mut allocator = command();
    preload(&mut allocator, &preload_library());
    let outcomes =
        [run_plain(command(), LIMIT), finish(allocator, LIMIT), run_folded(command(), &folding, LIMIT)];
    let said = outcomes.map(|outcome| (outcome.status.code(), outcome.stderr));
    assert_eq!(said[0].0, Some(status), "{}", said[0].1);
    assert_eq!((&said[1], &said[2]), (&said[0], &said[0]));
    said.into_iter().next().unwrap().1
}

#[test]
fn rust_whose_standard_library_is_one_of_its_own_unwinds() {
    let dir = scratch();
    let rustc = |source: &str| {
        std::fs::write(dir.path().join("source.rs"), source).unwrap();
        let mut command = Command::new(program("rustc", "rustup"));
        command.args(["-C", "prefer-dynamic", "-C", "rpath", "source.rs"]).current_dir(dir.path());
        command
    };
    // The compiler is such a program, and unwinds at an error.
    let said = says(|| rustc("fn main() { let _: u32 = \"a\"; }\n"), 1);
    assert!(said.contains("mismatched types"), "{said}");
    let caught = rustc(
        "fn main() {\n\
             std::panic::set_hook(Box::new(|_| ()));\n\
             eprintln!(\"{}\", std::panic::catch_unwind(|| panic!()).is_err());\n\
         }\n",
    );
    run_plain(caught, LIMIT).expect_success("rustc");
    assert_eq!(says(|| Command::new(dir.path().join("source")), 0), "true\n");
}
