//! The allocator inside real programs: `libmemfold.so` preloaded, the pager off.
//!
//! The C and C++ programs of `c/` are built here with the system's compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Builds a program of `c/` and returns its path.
fn build(dir: &Path, source: &str, compiler: &str) -> PathBuf {
    build_part(&dir.join(source.replace('.', "-")), source, compiler, &[])
}

/// Builds what a source in `c/` is with these options.
fn build_part(out: &Path, source: &str, compiler: &str, options: &[&str]) -> PathBuf {
    let status = Command::new(compiler)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-use-after-free", "-pthread", "-o"])
        .arg(out)
        .args(options)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source))
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}. Install it: apt-get install gcc g++"));
    assert!(status.success(), "{compiler} {source} {options:?}: {status}");
    out.to_owned()
}

/// A command that runs with the library preloaded and the pager off.
fn preloaded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", memfold_e2e::preload_library()).env("MEMFOLD_PAGER", "off");
    command
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{:?}: {error}. `make test` installs it", command.get_program()));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Asserts that a program prints the same with the library and without.
fn same_output(program: &str, args: &[&str]) -> Vec<u8> {
    let plain = run(Command::new(program).args(args).env_remove("LD_PRELOAD")).stdout;
    let ours = run(preloaded(program).args(args)).stdout;
    assert_eq!(String::from_utf8_lossy(&plain), String::from_utf8_lossy(&ours), "{program} {args:?}");
    assert!(!ours.is_empty(), "{program} {args:?} printed nothing");
    ours
}

#[test]
fn nothing_is_asked_of_a_programs_own_allocator_before_the_program_has_begun() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "own_malloc.c", "cc");
    for pager in ["off", "on"] {
        let output = run(preloaded(&program).env("MEMFOLD_PAGER", pager));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "every byte\n", "with the pager {pager}");
    }
}

/// Asserts that the allocator in the process is ours, by what only ours prints.
#[test]
fn the_preloaded_library_is_the_one_that_allocates() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("stats.c");
    std::fs::write(&source, "#include <malloc.h>\nint main(void) { malloc_stats(); }\n").unwrap();
    let program = dir.path().join("stats");
    run(Command::new("cc").arg("-o").arg(&program).arg(&source));
    let output = run(&mut preloaded(program));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("memfold: mapped "), "{text}");
}

#[test]
fn the_c_functions_conform_to_posix_and_glibc() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&mut preloaded(build(dir.path(), "conformance.c", "cc")));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "conforms\n");
}

#[test]
fn blocks_keep_their_bytes_while_threads_exchange_them_exit_and_fork() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "stress.c", "cc");
    for seed in ["1", "2", "3"] {
        let output = run(preloaded(&program).args(["6", "4", seed]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let checked: u64 = text.split(' ').next().unwrap().parse().unwrap();
        assert!(checked > 10_000, "{text}");
    }
}

#[test]
fn cpp_operators_and_containers_work_in_threads() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "threads.cpp", "g++");
    let output = same_output(program.to_str().unwrap(), &[]);
    assert!(output.ends_with(b" same refused\n"), "{}", String::from_utf8_lossy(&output));
}

#[test]
fn blocks_that_a_program_calls_cold_lie_apart_and_are_freed_like_any_others() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "hot_cold.cpp", "g++");
    let plain = run(Command::new(&program).env_remove("LD_PRELOAD"));
    assert_eq!(String::from_utf8_lossy(&plain.stdout), "no such operators\n");
    for profile in ["balanced", "speed", "lean", "secure"] {
        let output = run(preloaded(&program).env("MEMFOLD_PROFILE", profile));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "cold blocks lie apart\n", "{profile}");
        assert!(output.stderr.is_empty(), "{profile}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let folded = run(preloaded(&program).env("MEMFOLD_PAGER", "on"));
    assert_eq!(String::from_utf8_lossy(&folded.stdout), "cold blocks lie apart\n", "with the pager");
}

#[test]
fn functions_of_libc_are_the_same_by_its_handle_and_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let part =
        |name: &str, options: &[&str]| build_part(&dir.path().join(name), "by_handle.c", "cc", options);
    let (program, own) = (part("by_handle", &[]), part("own_dlsym", &["-DOWN_DLSYM"]));
    let between = part("libbetween.so", &["-DBETWEEN", "-shared", "-fPIC"]);
    let late = part("liblate.so", &["-DLATE", "-shared", "-fPIC"]);
    part("libplugin.so", &["-DPLUGIN", "-shared", "-fPIC"]);
    // What is printed, with these libraries preloaded.
    let printed = |program: &Path, libraries: &[&Path], pager: &str, args: &[&str]| {
        let list: Vec<_> = libraries.iter().map(|library| library.to_str().unwrap()).collect();
        let mut command = Command::new(program);
        command.args(args).env("LD_PRELOAD", list.join(":")).env("MEMFOLD_PAGER", pager).current_dir(&dir);
        let output = run(&mut command);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8(output.stdout).unwrap()
    };
    let (libcs, ours) = ("libc.so.6", "libmemfold.so");
    let plain = printed(&program, &[], "off", &[libcs]);
    assert!(plain.ends_with("as by name\n"), "{plain}");
    printed(&own, &[], "off", &[libcs]);
    let library = memfold_e2e::preload_library();
    for pager in ["off", "on"] {
        assert_eq!(printed(&program, &[&library], pager, &[ours]), plain);
        assert_eq!(printed(&program, &[&library, &between], pager, &[ours, libcs]), plain);
        assert_eq!(printed(&program, &[&between, &library], pager, &[ours, ours]), plain);
        assert_eq!(printed(&own, &[&library], pager, &[ours]), "as by name\n");
        assert_eq!(printed(Path::new("echo"), &[&library, &late], pager, &["begun"]), "begun\n");
    }
}

/// Valgrind has an allocator of its own in place of libc's.
#[test]
fn inside_valgrind_functions_by_the_handle_of_libc_are_libcs() {
    const PROGRAM: &str = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
        int main(void) {\n\
            Dl_info found;\n\
            return !dladdr(dlsym(dlopen(\"libc.so.6\", RTLD_NOW), \"free\"), &found) || puts(found.dli_fname) < 0;\n\
        }\n";
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("free.c"), dir.path().join("free"));
    std::fs::write(&source, PROGRAM).unwrap();
    run(Command::new("cc").arg("-o").arg(&program).arg(&source));
    let outside = String::from_utf8(run(&mut preloaded(&program)).stdout).unwrap();
    assert!(outside.ends_with("/libmemfold.so\n"), "{outside}");
    let inside = String::from_utf8(run(preloaded("valgrind").arg("-q").arg(&program)).stdout).unwrap();
    assert!(inside.ends_with("/libc.so.6\n"), "{inside}");
}

#[test]
fn python_frees_by_the_handle_of_libc_what_libc_allocates() {
    const PROGRAM: &str = "
import ctypes
libc = ctypes.CDLL('libc.so.6')
for function in libc.strdup, libc.realloc:
    function.restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
libc.free(libc.strdup(b'x' * 99))
block = libc.realloc(libc.strdup(b'x' * 99), 5000)
print(libc.malloc_usable_size(block) >= 5000, ctypes.string_at(block))
libc.free(block)
";
    let plain = same_output("python3", &["-c", PROGRAM]);
    let folded = run(preloaded("python3").args(["-c", PROGRAM]).env("MEMFOLD_PAGER", "on"));
    assert_eq!(folded.stdout, plain);
}

#[test]
fn functions_around_those_of_libc_have_their_blocks_freed() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "wrapped.c", "cc");
    run(Command::new(&program).env_remove("LD_PRELOAD"));
    for profile in ["balanced", "secure"] {
        for pager in ["off", "on"] {
            let output = run(preloaded(&program).env("MEMFOLD_PROFILE", profile).env("MEMFOLD_PAGER", pager));
            assert_eq!(String::from_utf8_lossy(&output.stdout), "every block is freed\n");
        }
    }
}

#[test]
fn everyday_programs_print_what_they_always_print() {
    same_output("ls", &["-l", "/usr/bin"]);
    same_output("git", &["--no-pager", "log", "--stat", "-5", "--no-color"]);
    same_output("perl", &["-e", "my %h; $h{$_ % 5003} .= chr(97 + $_ % 26) for 1..300000; print length(join '', map { $h{$_} } sort keys %h), \"\\n\""]);
    same_output(
        "python3",
        &[
            "-c",
            "import json, threading, hashlib, os\n\
             out = {}\n\
             def work(n):\n\
             \x20   d = [{'id': i, 'name': 'n%d' % i, 'tags': ['t%d' % (i * j) for j in range(5)]} for i in range(4000)]\n\
             \x20   out[n] = hashlib.sha256(json.dumps(d).encode()).hexdigest()\n\
             ts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n\
             [t.start() for t in ts]; [t.join() for t in ts]\n\
             pid = os.fork()\n\
             if pid == 0:\n\
             \x20   work(9); os._exit(0 if out[9] == out[0] else 1)\n\
             assert os.waitpid(pid, 0)[1] == 0\n\
             print(sorted(out.items()))",
        ],
    );
}

#[test]
fn redis_serves_a_benchmark_and_saves_itself_in_a_forked_child() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let mut server = preloaded("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server: {error}. Install it: apt-get install redis-server"));
    let cli = |args: &[&str]| {
        let output = Command::new("redis-cli").arg("-s").arg(&socket).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let ready = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        cli(&["ping"]) == "PONG"
    });
    let bench = ready.then(|| {
        Command::new("redis-benchmark")
            .arg("-s")
            .arg(&socket)
            .args([
                "-q",
                "-n",
                "30000",
                "-P",
                "16",
                "-r",
                "20000",
                "-d",
                "300",
                "-t",
                "set,get,lpush,hset,zadd",
            ])
            .output()
            .unwrap()
    });
    let keys: u64 = cli(&["dbsize"]).parse().unwrap_or(0);
    let saved = cli(&["save"]);
    let rewritten = cli(&["bgsave"]);
    let finished = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let info = cli(&["info", "persistence"]);
        info.contains("rdb_bgsave_in_progress:0") && info.contains("rdb_last_bgsave_status:ok")
    });
    cli(&["shutdown", "nosave"]);
    let status = server.wait().unwrap();
    assert!(ready, "redis-server never answered");
    assert!(bench.is_some_and(|output| output.status.success()));
    assert!(keys > 10_000, "{keys} keys");
    assert_eq!(saved, "OK");
    assert!(rewritten.starts_with("Background saving started") && finished, "{rewritten}");
    assert!(status.success(), "{status}");
}
