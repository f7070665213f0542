//! `memfold bench programs` with every program that is installed here: what it writes, and that a wrong datum is found. No
//! figure is judged.

use memfold_bench::course::Progress;
use memfold_bench::output::Output;
use memfold_bench::programs::{Arm, Kind, Options, Report};
use memfold_bench::worker::Program;
use memfold_e2e::agent::memfold_with_agent;
use memfold_e2e::command_line::{executable, is_root, scratch};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn program() -> Program {
    Program { path: executable(), arguments: vec![], library: memfold_e2e::preload_library() }
}

fn options(programs: Vec<Kind>, arms: Vec<Arm>) -> Options {
    Options {
        programs,
        arms,
        runs: 1,
        bytes: 4 << 20,
        together: 64,
        attach: false,
        tier: None,
        busy_millis: Some(300),
        idle_millis: 600,
        out: None,
        json: false,
        spoil: false,
        collect: false,
        leave_folded: false,
    }
}

/// Carries it out and writes what came of it.
fn run(options: Options, out: &Path, progress: Progress<'_>) -> Result<Report, String> {
    let done = Report::of(options, &program(), progress);
    let done = done.and_then(|report| report.write(&Output::create(out)?).map(|()| report));
    done.map_err(|error| format!("{error:#}"))
}

fn all() -> Vec<Kind> {
    Kind::ALL.to_vec()
}

/// The table in a file, by column.
fn table(path: &Path) -> (Vec<String>, Vec<Vec<String>>) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    (lines.next().expect("a head"), lines.collect())
}

#[test]
fn every_program_builds_its_heap_reads_it_back_and_ends_in_each_arm() {
    let dir = scratch();
    let out = dir.path().join("out");
    let mut seen = Vec::new();
    let options = Options { collect: true, ..options(all(), vec![Arm::Plain, Arm::Folded]) };
    let report = run(options, &out, &mut |advance| {
        seen.push((advance.done, advance.total));
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let ran: BTreeSet<Kind> = report.programs().collect();
    let skipped: BTreeSet<Kind> = report.found.skipped.iter().map(|skipped| skipped.program).collect();
    assert!(ran.contains(&Kind::Python3) && ran.contains(&Kind::Redis), "{skipped:?} did not run");
    assert_eq!(ran.union(&skipped).count(), all().len());
    assert!(
        report.found.skipped.iter().all(|skipped| skipped.why.contains("apt-get install")),
        "{:?}",
        report.found.skipped
    );
    for skipped in &report.found.skipped {
        println!("{} is not tested: {}", skipped.program.name(), skipped.why);
    }
    assert_eq!(report.found.runs.len(), 2 * ran.len());
    assert_eq!(seen.last(), Some(&(report.found.runs.len() as u64, report.found.runs.len() as u64)));

    for run in &report.found.runs {
        let what = format!("{}, {}", run.program.name(), run.arm.name());
        assert!(run.items > 0 && run.load_s > 0.0 && run.exit_s > 0.0 && run.cpu_s > 0.0, "{what}: {run:?}");
        assert!(run.hot_begin.units > 0 && run.hot_end.units > 0, "{what}: {run:?}");
        // The moment of the load and the end of the idle phase are looked at closely.
        let close: Vec<_> = run.moments.iter().filter(|moment| moment.pss_bytes.is_some()).collect();
        assert_eq!(close.len(), 2, "{what}: {run:?}");
        assert!(close[1].at_s >= 0.6, "{what}: {run:?}");
        for moment in &run.moments {
            assert!(moment.anonymous_bytes > 0, "{what}: {run:?}");
            assert!(moment.resident_bytes >= moment.anonymous_bytes, "{what}: {run:?}");
            assert!(moment.pss_bytes.is_none_or(|pss| pss > 0), "{what}: {run:?}");
        }
        assert_eq!(run.folded.is_some(), run.arm == Arm::Folded, "{what}");
        let collects = !matches!(run.program, Kind::Sqlite | Kind::Postgres | Kind::Chromium);
        assert_eq!(run.collect_s.is_some_and(|time| time > 0.0), collects, "{what}: {run:?}");
        // `memfold run` stands above what it folds, with its witness of signals beside, which is started when the program is.
        let alone = matches!(run.program, Kind::Python3 | Kind::Redis | Kind::Java | Kind::Go | Kind::Node);
        let (most, first) = if run.arm == Arm::Folded { (3, 2) } else { (1, 1) };
        let counts: Vec<_> = run.moments.iter().map(|moment| moment.processes).collect();
        let grows = counts.iter().all(|count| (first..=most).contains(count)) && counts.is_sorted();
        assert!(!alone || grows && counts.last() == Some(&most), "{what}: {run:?}");
    }

    let (head, rows) = table(&out.join("runs.csv"));
    assert_eq!(rows.len(), report.found.runs.len());
    let cell = |row: &[String], name: &str| {
        let place =
            head.iter().position(|own| own == name).unwrap_or_else(|| panic!("no column {name} in {head:?}"));
        row[place].clone()
    };
    for row in &rows {
        assert_eq!(row.len(), head.len());
        for name in ["resident_bytes_loaded", "resident_bytes_0.6s", "anonymous_bytes_0.6s", "pss_bytes_0.6s"]
        {
            assert!(cell(row, name).parse::<f64>().unwrap() > 0.0, "{name} in {row:?}");
        }
        assert_eq!(cell(row, "pages_evicted").is_empty(), cell(row, "arm") == "plain", "{row:?}");
    }
    let (_, moments) = table(&out.join("memory.csv"));
    assert_eq!(moments.len(), report.found.runs.iter().map(|run| run.moments.len()).sum::<usize>());
    for file in [
        "aggregate.csv",
        "result.json",
        "manifest.json",
        "summary.txt",
        "report.html",
        "plots/memory_ratio.png",
    ] {
        assert!(out.join(file).is_file(), "{file} is missing");
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(ran.iter().all(|kind| page.contains(&format!("<td>{}</td><td>folded</td>", kind.name()))));
}

#[test]
fn one_wrong_datum_in_any_program_is_found_and_yields_no_figures() {
    let installed: BTreeSet<Kind> = all().into_iter().collect();
    for kind in installed {
        let dir = scratch();
        let spoilt = Options { spoil: true, ..options(vec![kind], vec![Arm::Plain]) };
        let error = match run(spoilt, dir.path(), &mut |_| {}) {
            Ok(_) => panic!("{}: a changed datum was not found", kind.name()),
            Err(error) => error,
        };
        if error.contains("apt-get install") {
            println!("{} is not tested: {error}", kind.name());
            continue;
        }
        assert!(error.contains("items are wrong") && error.contains(kind.name()), "{error}");
        assert!(error.contains(": 1 of "), "{error}");
        assert!(!dir.path().join("runs.csv").exists(), "{} left figures", kind.name());
    }
}

#[test]
fn the_command_prints_its_tables_and_names_the_package_of_what_is_missing() {
    let dir = scratch();
    let run = |arguments: &[&str], path: Option<&Path>| {
        let mut command = memfold_with_agent(dir.path());
        command.args(["bench", "programs", "--runs", "1", "--size", "4M", "--idle", "300ms"]).args(arguments);
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let output = command.output().expect("memfold starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (mut words, mut arms) =
        (vec!["--only", "redis", "--arms", "plain,null,folded"], vec!["plain", "null", "folded"]);
    if is_root() {
        words.push("--attach");
        arms.push("attached");
    }
    let (code, out, err) = run(&words, None);
    assert_eq!(code, Some(0), "{err}");
    for arm in arms {
        let rows = out.lines().filter(|line| line.split_whitespace().take(2).eq(["redis", arm])).count();
        assert_eq!(rows, 2, "{arm}: {out}");
    }
    let (code, out, err) = run(&["--only", "python3", "--json"], None);
    assert_eq!(code, Some(0), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(2));

    let (code, _, err) = run(&["--only", "redis"], Some(dir.path()));
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("apt-get install redis-server"), "{err}");
    let (code, _, err) = run(&["--only", "ruby"], None);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = run(&["--arms", "folded"], None);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("plain"), "{err}");
}
