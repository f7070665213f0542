//! The allocator's experiments run to their end and measure what they say. No figure is judged.

use memfold_bench::alloc::{self, arena, scorecard, soak, Case, Measures, NotLoaded, Peer, Profile, SUITE};
use memfold_bench::experiment::{Experiment, Report};
use memfold_bench::worker::Program;
use memfold_e2e::machine;
use std::process::Command;

fn program() -> Program {
    Program {
        path: env!("CARGO_BIN_EXE_memfold-e2e").into(),
        arguments: vec!["worker".into()],
        library: memfold_e2e::preload_library(),
    }
}

/// The suite with few blocks, and none that takes long to be written.
fn small_suite() -> Vec<Case> {
    let small = |mut case: Case| {
        case.job.slots = case.job.slots.min(50);
        case.job.least_bytes = case.job.least_bytes.min(64 << 10);
        case.job.most_bytes = case.job.most_bytes.min(2 << 20);
        case.steps = case.steps.min(20_000);
        case
    };
    SUITE.into_iter().map(small).collect()
}

fn options(cases: Vec<Case>) -> alloc::Options {
    // Any library with a `malloc` is a peer; ours is one that is there.
    let peer = Peer { name: "peer".into(), library: memfold_e2e::preload_library() };
    alloc::Options {
        measures: Measures { cases, ..Measures::default() },
        profiles: vec![Profile::Lean],
        peers: vec![peer],
        no_installed: true,
        millis: 10,
        operations: None,
        rounds: 1,
        soak: None,
        epoch: None,
        programs: None,
        only: Vec::new(),
        scorecard: None,
        seed: 1,
    }
}

#[test]
fn every_pattern_gives_a_rate_and_a_size_for_each_allocator_and_the_scorecard_names_them() {
    let report = Report::of(options(small_suite()), &program(), &mut |_| {}).expect("measured");
    assert_eq!(report.found.runs.len(), SUITE.len() * 3);
    for case in SUITE {
        for arm in ["glibc", "memfold-lean", "peer"] {
            let run = report.found.runs.iter().find(|run| (run.case, run.arm.as_str()) == (case.name, arm));
            let run = run.unwrap_or_else(|| panic!("{} with {arm} did not run", case.name));
            assert!(run.calls_per_s > 0.0 && run.rss_peak_bytes > 1 << 20, "{run:?}");
            assert!(report.found.cell(case.name, arm).is_some());
        }
    }
    let page = scorecard::markdown(&report).unwrap();
    assert!(SUITE.iter().all(|case| page.contains(case.name)) && page.contains("lean"), "{page}");
}

#[test]
fn so_many_operations_are_the_same_work_for_every_allocator_and_every_figure_is_told_for_each_of_them() {
    let operations = 30_000;
    let options = alloc::Options { operations: Some(operations), ..options(small_suite()) };
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured");
    for case in SUITE {
        let own: Vec<_> = report.found.runs.iter().filter(|run| run.case == case.name).collect();
        let same = own[0].operations;
        for run in own {
            assert!((operations..operations + 2_000).contains(&run.operations), "{run:?}");
            assert_eq!(run.operations, same, "{run:?}");
            assert!((run.ns_per_call * run.operations as f64 - run.elapsed_ns as f64).abs() < 1.0, "{run:?}");
            let faults = run.faults_per_call * run.operations as f64;
            assert!((faults - run.phase_faults as f64).abs() < 1e-6 && run.phase_faults > 0, "{run:?}");
        }
        let cell = report.found.cell(case.name, "memfold-lean").unwrap();
        let calls = cell.kernel_calls.zip(cell.kernel_calls_per_call);
        assert_eq!(calls.is_some(), report.found.uncounted.is_none(), "{cell:?}");
        assert!(
            calls.is_none_or(|(calls, each)| (each * cell.operations - calls as f64).abs() <= each),
            "{cell:?}"
        );
    }
    let said = report.to_string();
    assert!(said.contains("runs of 30000 operations") && said.contains("kernel calls/op"), "{said}");
}

#[test]
fn the_arena_benchmark_counts_faults_with_the_arena_off_and_on() {
    // A huge page takes one fault in place of hundreds.
    let _alone = machine::alone_with(machine::HUGE_PAGES);
    let measures = Measures { cases: vec!["mid_mt".parse().unwrap()], ..Measures::default() };
    let options = arena::Options { measures, steps: Some(4_000), rounds: 1, seed: 1 };
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured");
    let row = &report.found.rows[0];
    assert!(row.off.minor_faults > 1000.0 && row.on.minor_faults > 0.0, "{row:?}");
}

#[test]
fn a_soak_gives_every_epoch_of_every_allocator() {
    let suite = options(vec!["random_mixed".parse().unwrap()]);
    let options = soak::Options { suite, soak_millis: 60, epoch_millis: 20 };
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured");
    assert_eq!(report.found.epochs.len(), 3 * 3);
}

#[test]
fn a_peer_that_does_not_become_the_allocator_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("empty.c"), dir.path().join("empty.so"));
    std::fs::write(&source, "int nothing;\n").unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    let mut options = options(vec!["random_mixed".parse().unwrap()]);
    options.peers = vec![Peer { name: "empty".into(), library }];
    let refused = Report::of(options, &program(), &mut |_| {}).map(|_| ()).unwrap_err();
    assert!(refused.downcast_ref::<NotLoaded>().is_some(), "{refused:#}");
    assert!(format!("{refused:#}").contains("empty"), "{refused:#}");
}

/// A directory with two programs of mimalloc-bench's names: one takes memory, the other says how fast it was.
fn small_programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let build = |name: &str, body: &str| {
        let source = dir.path().join(format!("{name}.c"));
        let head = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n";
        std::fs::write(&source, format!("{head}int main(int count, char **words) {{ {body} }}\n")).unwrap();
        let built = Command::new("cc").arg("-o").arg(dir.path().join(name)).arg(&source).status().unwrap();
        assert!(built.success());
    };
    build("mleak", "size_t mib = atoi(words[1]); char *all = malloc(mib << 20); memset(all, 1, mib << 20); return all[count] - 1;");
    build("xmalloc-test", "printf(\"rtime: %s.250, free/sec: 1 M\\n\", words[4]); return count != 7;");
    build("cfrac", "return 3;");
    dir
}

fn programs_in(dir: &tempfile::TempDir, only: &[&str]) -> alloc::programs::Options {
    let mut suite = options(Vec::new());
    suite.programs = Some(dir.path().to_owned());
    suite.only = only.iter().map(|name| (*name).to_owned()).collect();
    suite.programs().unwrap()
}

#[test]
fn programs_that_nobody_here_wrote_are_timed_with_each_allocator_and_their_memory_is_told() {
    let dir = small_programs();
    let mut options = programs_in(&dir, &["mleak10", "mleak100", "xmalloc-testN"]);
    options.prepare().unwrap();
    let found = Report::of(options, &program(), &mut |_| {}).expect("measured").found;
    assert_eq!(found.runs.len(), 3 * 3);
    for run in &found.runs {
        let mib = run.rss_peak_bytes >> 20;
        match run.program {
            "mleak10" => assert!((5..40).contains(&mib) && run.time_s == run.elapsed_s, "{run:?}"),
            "mleak100" => assert!((50..85).contains(&mib) && run.time_s > 0.0, "{run:?}"),
            // What it says, and no more memory than the likes of it have.
            _ => assert!(run.time_s == 5.25 && run.elapsed_s < 5.0 && mib < 5 + 5, "{run:?}"),
        }
    }
    assert!(found.absent.is_empty() && found.standings.iter().any(|s| s.beside.is_none()));
}

#[test]
fn any_other_program_of_the_directory_is_run_as_it_is_and_has_a_section_of_the_scorecard() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("becomes");
    // It becomes another program, whose memory counts and not the shell's, and leaves a file where it runs.
    let takes = "head -c 30000000 /dev/zero > file; exec sort -S 100M file";
    std::fs::write(&script, format!("#!/bin/sh\n{takes}\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no program").unwrap();
    let card = dir.path().join("card.md");
    std::fs::write(&card, "# Card\n").unwrap();
    let mut options = programs_in(&dir, &[]);
    options.suite.scorecard = Some(card.clone());
    options.prepare().unwrap();
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured");
    assert!(report.found.absent.is_empty() && report.found.runs.len() == 3);
    assert!(report.found.runs.iter().all(|run| run.program == "becomes" && run.rss_peak_bytes > 20 << 20));
    alloc::programs::Options::finish(&report).unwrap();
    let page = std::fs::read_to_string(card).unwrap();
    assert!(page.starts_with("# Card\n\n## Programs as they are\n"), "{page}");
    assert!(page.contains("| `becomes` |") && page.contains("glibc 2."), "{page}");
}

#[test]
fn a_program_that_is_not_there_or_ends_badly_is_named() {
    let dir = small_programs();
    let refused = programs_in(&dir, &["larsonN"]).prepare().unwrap_err();
    assert!(format!("{refused:#}").contains("it has not larsonN"), "{refused:#}");
    let failed = Report::of(programs_in(&dir, &["cfrac"]), &program(), &mut |_| {}).map(|_| ()).unwrap_err();
    assert!(
        format!("{failed:#}").contains("cfrac, glibc failed: it ended badly: exit status: 3"),
        "{failed:#}"
    );
}

#[test]
fn a_program_that_fails_under_another_allocator_is_left_out_by_name_and_the_others_are_measured() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    // Ours has a profile, glibc no library: what is left is the other.
    let fails = "[ -z \"$LD_PRELOAD\" ] || [ -n \"$MEMFOLD_PROFILE\" ] || exit 4";
    for (name, body) in [("fails", fails), ("works", "exec sort /dev/null")] {
        let script = dir.path().join(name);
        std::fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut options = programs_in(&dir, &[]);
    options.prepare().unwrap();
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured");
    assert_eq!(report.found.runs.iter().map(|run| run.program).collect::<Vec<_>>(), ["works"; 3]);
    let said = report.to_string();
    assert!(
        said.contains("fails is left out, as it failed under peer: it ended badly: exit status: 4"),
        "{said}"
    );
    let none = Report::of(programs_in(&dir, &["fails"]), &program(), &mut |_| {}).map(|_| ()).unwrap_err();
    assert!(format!("{none:#}").contains("no program works under all allocators"), "{none:#}");
}
