//! The experiment on workloads, from its command line to its page.

use memfold_e2e::{memfold, scratch};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(command: &mut Command) -> Output {
    command.output().expect("memfold can be started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What an attempt gives whose programs run for so long that something is folded: not long, but on a busy machine.
fn until_folded<R>(mut attempt: impl FnMut(&str) -> R, folded: impl Fn(&R) -> bool) -> R {
    for duration in ["900ms", "4s", "16s", "64s"] {
        let result = attempt(duration);
        if folded(&result) {
            return result;
        }
    }
    panic!("nothing is folded in 64 s")
}

/// A small experiment that is over in seconds.
fn experiment(runtime: &Path, out: &Path, only: &str, duration: &str) -> Command {
    let mut command = memfold(runtime);
    command.args([
        "bench",
        "pager",
        "--runs",
        "1",
        "--duration",
        duration,
        "--cold-age",
        "100ms",
        "--region",
        "24M",
    ]);
    command.args(["--only", only, "--json", "--out"]).arg(out);
    command
}

#[test]
fn the_experiment_folds_the_workloads_and_writes_tables_plots_and_page() {
    let dir = scratch();
    let only =
        "interactive_burst,anon_streamer,random_touch_heap,mmap_churn,phase_shift,zipf_heap,fork_touch_exit";
    let attempt = |duration: &str| {
        let out = dir.path().join(duration);
        let mut command = experiment(dir.path(), &out, only, duration);
        let output = run(&mut command);
        assert!(output.status.success(), "{}", said(&output));
        (command, out, serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON"))
    };
    let median = |results: &serde_json::Value, workload: &str, arm: &str, metric: &str| {
        let rows = results["aggregate"].as_array().unwrap();
        let row = rows.iter().find(|r| r["workload"] == workload && r["arm"] == arm && r["metric"] == metric);
        row.unwrap_or_else(|| panic!("{workload} {arm} {metric}"))["median"].as_f64().unwrap()
    };
    let (mut command, out, results) = until_folded(attempt, |(_, _, results)| {
        only.split(',').map(|w| median(results, w, "pager", "pager_compress_success")).sum::<f64>() > 0.0
    });
    let median = |workload: &str, arm: &str, metric: &str| median(&results, workload, arm, metric);
    for workload in only.split(',') {
        assert!(median(workload, "baseline", "units_per_s") > 0.0, "{workload}");
        assert!(median(workload, "pager", "host_peak_rss_bytes") > 24e6, "{workload}");
        assert!(median(workload, "baseline", "host_minor_faults") > 1000.0, "{workload}");
    }
    // A mapping that is gone before it could be cold costs the pager no entry.
    let units = median("mmap_churn", "pager", "units");
    assert!(median("mmap_churn", "pager", "pager_range_add_msgs") < units);
    assert!(median("mmap_churn", "pager", "pager_range_del_msgs") < units);
    for file in
        ["manifest.json", "all_runs_long.csv", "aggregate.csv", "aggregate_summary.txt", "report.html"]
    {
        assert!(out.join(file).exists(), "{file}");
    }
    assert_eq!(fs::read_dir(out.join("plots")).unwrap().count(), 2 * 11);

    // The same command again finds everything done; another one is refused and changes nothing.
    let runs = || {
        let files = fs::read_dir(out.join("runs")).unwrap().flatten();
        files.filter(|e| e.file_name() != "lock").map(|e| e.metadata().unwrap().modified().unwrap())
    };
    let before: Vec<_> = runs().collect();
    assert!(run(&mut command).status.success());
    let other = run(&mut experiment(dir.path(), &out, "mmap_churn", "900ms"));
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    assert!(said(&other).contains("differs"), "{}", said(&other));
    assert_eq!(runs().collect::<Vec<_>>(), before);

    fs::remove_file(out.join("report.html")).unwrap();
    let report = run(memfold(dir.path()).arg("report").arg(&out));
    assert!(report.status.success() && out.join("report.html").exists(), "{}", said(&report));
}

#[test]
fn the_share_of_a_cpu_reaches_whoever_folds_and_is_kept_with_the_commit_of_the_executable() {
    let dir = scratch();
    let fold = |max_cpu: &str, duration: &str| {
        let out = dir.path().join(format!("cpu-{max_cpu}-{duration}"));
        let mut command = experiment(dir.path(), &out, "mmap_churn", duration);
        command.args(["--arms", "baseline,pager,daemon", "--max-cpu", max_cpu]);
        // Somebody else's working copy, whose commit is none of ours.
        let output = run(command.current_dir(dir.path()));
        assert!(output.status.success(), "{}", said(&output));
        let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(manifest["options"]["measures"]["max_cpu_percent"].as_f64(), max_cpu.parse().ok());
        let commit = manifest["sessions"][0]["commit"].as_str().unwrap_or("memfold").to_owned();
        let version = run(memfold(dir.path()).arg("--version"));
        assert!(String::from_utf8_lossy(&version.stdout).contains(&commit), "{version:?} without {commit}");
        let results: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = results["aggregate"].as_array().unwrap().clone();
        move |arm: &str, metric: &str| {
            let row = rows.iter().find(|row| row["arm"] == arm && row["metric"] == metric);
            row.unwrap_or_else(|| panic!("{arm} {metric}"))["median"].as_f64().unwrap()
        }
    };
    let other = Command::new("git").args(["init", "--quiet"]).current_dir(dir.path()).status();
    assert!(other.is_ok_and(|status| status.success()));
    // A tenth of a millisecond in ten seconds: looking alone takes more.
    let arms = ["pager", "daemon"];
    let starved = fold("0.001", "900ms");
    assert!(arms.iter().all(|arm| starved(arm, "pager_compress_success") == 0.0));
    let fed = until_folded(
        |duration| fold("100", duration),
        |fed| arms.iter().all(|arm| fed(arm, "pager_compress_success") > 0.0),
    );
    // Under a daemon each mapping that comes and goes is registered.
    assert!(fed("daemon", "pager_range_add_msgs") >= fed("daemon", "units"));
    assert!(fed("daemon", "pager_range_del_msgs") >= fed("daemon", "units"));
}

#[test]
fn a_workload_runs_as_a_program_and_reports_its_units() {
    let dir = scratch();
    let mut command = memfold(dir.path());
    command.args(["bench", "workload", "zipf_heap", "--duration", "200ms", "--region", "4M", "--json"]);
    let output = run(&mut command);
    assert!(output.status.success(), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["units"].as_u64() > Some(0) && report["latency_ns"]["p99"].as_u64() > Some(0), "{report}");
}

#[test]
fn bad_input_is_refused_with_its_value_and_the_remedy() {
    let dir = scratch();
    let out = dir.path().join("none");
    let refused = |arguments: &[&str], text: &str| {
        let output = run(memfold(dir.path()).args(["bench", "pager", "--out"]).arg(&out).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(text), "{arguments:?}: {}", said(&output));
    };
    refused(&["--only", "compile"], "zipf_heap");
    refused(&["--arms", "pager"], "baseline");
    refused(&["--arms", "baseline,swap"], "zram");
    refused(&["--region", "400G"], "too little memory");
    refused(&["--duration", "soon"], "10s");
    refused(&["--max-cpu", "0"], "between 0.001 % and 100 %");
    assert!(!out.exists());
    let report = run(memfold(dir.path()).arg("report").arg(dir.path()));
    assert_eq!(report.status.code(), Some(2), "{}", said(&report));
}
