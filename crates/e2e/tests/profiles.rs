//! The allocator's profiles and settings, in programs that were started with them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROFILES: [&str; 4] = ["speed", "balanced", "lean", "secure"];

/// Builds a program of `c/` and returns its path.
fn build(dir: &Path, source: &str) -> PathBuf {
    let program = dir.join(source.replace('.', "-"));
    let status = Command::new("cc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source))
        .status()
        .unwrap_or_else(|error| panic!("cc: {error}. Install it: apt-get install gcc"));
    assert!(status.success(), "{source}: {status}");
    program
}

/// Runs a program with the library and these variables.
fn run(program: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(program)
        .args(args)
        .env("LD_PRELOAD", memfold_e2e::preload_library())
        .env("MEMFOLD_PAGER", "off")
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_profile_conforms_to_posix_and_keeps_blocks_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (conformance, stress) = (build(dir.path(), "conformance.c"), build(dir.path(), "stress.c"));
    let random_mixed = build(dir.path(), "random_mixed.c");
    for profile in PROFILES {
        let variables = [("MEMFOLD_PROFILE", profile)];
        let output = run(&conformance, &[], &variables);
        assert_eq!(text(&output.stdout), "conforms\n", "{profile}: {}", text(&output.stderr));
        let output = run(&stress, &["6", "2", "7"], &variables);
        assert!(output.status.success(), "{profile}: {}{}", text(&output.stdout), text(&output.stderr));
        // So many slots that spans are given up and taken for blocks of another size.
        let output = run(&random_mixed, &["50000", "2", "0.5"], &variables);
        assert!(output.status.success(), "{profile}: {}{}", text(&output.stdout), text(&output.stderr));
    }
}

#[test]
fn no_setting_at_its_bounds_breaks_the_c_functions() {
    let dir = tempfile::tempdir().unwrap();
    let conformance = build(dir.path(), "conformance.c");
    for (name, value) in [
        ("MEMFOLD_ARENA", "off"),
        ("MEMFOLD_DECOMMIT", "off"),
        ("MEMFOLD_DECOMMIT", "free"),
        ("MEMFOLD_DECOMMIT_TARGET", "0"),
        ("MEMFOLD_DECAY", "0"),
        ("MEMFOLD_PREWARM", "32M"),
        ("MEMFOLD_HUGE", "on"),
        ("MEMFOLD_ARENA_CHUNK", "32M"),
        ("MEMFOLD_CHECK", "on"),
        ("MEMFOLD_GUARD", "on"),
    ] {
        let output = run(&conformance, &[], &[(name, value)]);
        assert_eq!(text(&output.stdout), "conforms\n", "{name}={value}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{name}={value}");
    }
}

#[test]
fn the_secure_profile_ends_a_program_that_misuses_its_blocks_and_says_how() {
    let dir = tempfile::tempdir().unwrap();
    let misuse = build(dir.path(), "misuse.c");
    let secure = [("MEMFOLD_PROFILE", "secure")];
    assert_eq!(text(&run(&misuse, &[], &secure).stdout), "survived\n");
    for (how, said) in [
        ("free-twice", "a block was freed twice"),
        ("free-twice-in-a-thread", "a block was freed twice"),
        ("free-large-twice", "a block was freed twice"),
        ("free-inside", "an address that is not the start of a block was freed"),
        ("free-foreign", "an address that is no block was freed"),
        ("free-one", "an address that is no block was freed"),
        ("resize-foreign", "an address that is no block was resized"),
        ("write-a-byte-behind", "a block was written to behind its end"),
        ("write-a-byte-before", "a block was written to "),
        ("write-after-free", "a freed block was written to"),
        ("resize-after-free", "a block was resized that was freed before"),
    ] {
        let output = run(&misuse, &[how], &secure);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{how}: {}", text(&output.stdout));
        let line = text(&output.stderr);
        assert!(line.starts_with("memfold: ") && line.contains(said), "{how}: {line}");
    }
}

#[test]
fn the_secure_profile_stops_who_touches_what_is_far_from_a_block_or_large_and_no_longer_one() {
    let dir = tempfile::tempdir().unwrap();
    let misuse = build(dir.path(), "misuse.c");
    for how in [
        "write-behind",
        "write-before",
        "write-a-freed-large-one",
        "write-a-mib-behind",
        "write-a-mib-before",
        "read-no-bytes",
    ] {
        let output = run(&misuse, &[how], &[("MEMFOLD_PROFILE", "secure")]);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{how}: {}", text(&output.stdout));
    }
}

#[test]
fn the_secure_profile_hands_blocks_out_in_an_order_that_changes_from_run_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let misuse = build(dir.path(), "misuse.c");
    let behind = |profile| -> u32 {
        let output = run(&misuse, &["order"], &[("MEMFOLD_PROFILE", profile)]);
        text(&output.stdout).lines().next().unwrap().parse().unwrap()
    };
    assert!(behind("balanced") > 350);
    let runs: Vec<u32> = (0..4).map(|_| behind("secure")).collect();
    assert!(runs.iter().all(|behind| *behind < 200), "{runs:?}");
    assert!(runs.iter().any(|behind| *behind != runs[0]), "{runs:?}");
}

#[test]
fn a_variable_that_cannot_be_read_is_named_once_and_the_program_runs() {
    let dir = tempfile::tempdir().unwrap();
    let misuse = build(dir.path(), "misuse.c");
    for (name, value, allowed) in [
        ("MEMFOLD_PROFILE", "fast", "`speed`, `balanced`, `lean` or `secure`"),
        ("MEMFOLD_ARENA", "yes", "`off` or `on`"),
        ("MEMFOLD_DECOMMIT", "maybe", "`off`, `free` or `dontneed`"),
        ("MEMFOLD_DECAY", "-1s", "a time up to an hour"),
        ("MEMFOLD_ARENA_CHUNK", "1T", "a size from 2 to 32 MiB"),
        ("MEMFOLD_ARENA_64K", "9999", "a number from 0 to 4096"),
    ] {
        let output = run(&misuse, &[], &[(name, value)]);
        assert_eq!(text(&output.stdout), "survived\n", "{name}={value}");
        let line = text(&output.stderr);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains(&format!("ignoring {name}={value}")) && line.contains(allowed), "{line}");
    }
}

#[test]
fn statistics_are_printed_at_exit_where_asked_for_and_given_to_c_programs() {
    let dir = tempfile::tempdir().unwrap();
    let misuse = build(dir.path(), "misuse.c");
    assert_eq!(text(&run(&misuse, &[], &[]).stderr), "");
    let said = text(&run(&misuse, &[], &[("MEMFOLD_STATS", "1")]).stderr);
    assert!(said.contains("memfold: kernel calls: mmap ") && said.contains("minor faults "), "{said}");
    // One block is never freed; the others are at hand.
    assert!(said.contains("memfold: blocks of 48 bytes: "), "{said}");

    let source = dir.path().join("counts.c");
    let program = dir.path().join("counts");
    std::fs::write(
        &source,
        "#include <memfold_alloc.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         int main(void) {\n\
           struct memfold_alloc_stats before, after;\n\
           if (!memfold_alloc_stats) { puts(\"plain\"); return 0; }\n\
           if (memfold_alloc_stats(&before, sizeof before) || memfold_alloc_stats(0, 8) != -1) return 1;\n\
           void *volatile block = malloc(1 << 20);\n\
           if (memfold_alloc_stats(&after, sizeof after)) return 1;\n\
           printf(\"%d %d\\n\", (int)(after.live_bytes - before.live_bytes), (int)(after.large_blocks - before.large_blocks));\n\
           return !block || !after.process_resident_bytes || !after.mmap_calls;\n\
         }\n",
    )
    .unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/include");
    let built =
        Command::new("cc").arg("-I").arg(include).arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(built.success());
    let output = run(&program, &[], &[]);
    assert_eq!(text(&output.stdout), "1048576 1\n");
    assert!(output.status.success());
    let plain = Command::new(&program).env_remove("LD_PRELOAD").output().unwrap();
    assert_eq!(text(&plain.stdout), "plain\n");
}

/// What a thread keeps at hand by itself, as `docs/allocator.md` says, and the allocator's own records, KiB.
const AT_HAND: usize = 3 << 10;

/// Has a program take 80 MiB in blocks of a size, free them and call the allocator no more, and makes sure that what is
/// resident falls to `most` KiB.
fn gives_back(program: &Path, block: usize, most: usize, variables: &[(&str, &str)]) {
    let most = (most + AT_HAND).to_string();
    let output = run(program, &[&block.to_string(), "80", &most], variables);
    let (left, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "blocks of {block}, {variables:?}: {left} KiB stay of {most}\n{said}");
}

#[test]
fn no_more_free_memory_stays_resident_than_the_target_says_and_nobody_must_call_for_that() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "give_back.c");
    for block in [100, 20_000, 300_000, 4_000_000] {
        for (target, most) in [("10M", 10 << 10), ("1M", 1 << 10), ("0", 0), ("20M", 20 << 10)] {
            gives_back(&program, block, most, &[("MEMFOLD_DECOMMIT_TARGET", target)]);
        }
    }
}

#[test]
fn a_profile_gives_back_what_it_promises_also_to_a_program_that_nobody_wakes() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "give_back.c");
    for block in [100, 20_000, 300_000, 4_000_000] {
        // At any time, where the pager does not run.
        gives_back(&program, block, 32 << 10, &[("MEMFOLD_PROFILE", "balanced")]);
        gives_back(&program, block, 8 << 10, &[("MEMFOLD_PROFILE", "lean")]);
        // For good, where it does. Nothing is old enough to be folded.
        let folding = [("MEMFOLD_PAGER", "on"), ("MEMFOLD_COLD_AGE", "1h"), ("MEMFOLD_START_AT", "0")];
        for (profile, most) in [("balanced", 4 << 10), ("lean", 1 << 10)] {
            gives_back(
                &program,
                block,
                most,
                &[folding.as_slice(), &[("MEMFOLD_PROFILE", profile)]].concat(),
            );
        }
    }
}
