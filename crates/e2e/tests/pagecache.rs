//! `memfold pagecache` as a person types it, with the real fio on a real file.

use memfold_e2e::command_line::memfold;
use memfold_e2e::LIMIT;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Two workloads that take next to no time, one of them mixed and with several threads.
const SMALL: &str = "\
[reader]
file_size = 8M
block_size = 4k
runtime = 1
pattern = read
[mixed]
file_size = 8M
block_size = 8k
runtime = 1
numjobs = 2
iodepth = 4
pattern = randrw
rwmixread = 70
";

/// A directory of the test's own on the disk of the build: /tmp may lie in memory.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory can be made")
}

fn command(home: &Path, args: &[&str]) -> Command {
    fs::write(home.join("small.ini"), SMALL).unwrap();
    let mut command = memfold(home);
    command.current_dir(home).arg("pagecache").args(args);
    command
}

fn run(home: &Path, args: &[&str]) -> Output {
    command(home, args).output().unwrap()
}

fn well(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refusal(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The groups that `pid` has made in any hierarchy.
fn groups(pid: u32) -> Vec<String> {
    let ours = format!("memfold-pagecache-{pid}-");
    let below = |hierarchy: &str| names(Path::new(hierarchy)).into_iter();
    let all = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/blkio"].map(below);
    all.into_iter().flatten().filter(|name| name.starts_with(&ours)).collect()
}

/// The processes whose command line names `path`.
fn processes_with(path: &Path) -> Vec<String> {
    let wanted = path.to_string_lossy().into_owned();
    let lines = names(Path::new("/proc")).into_iter().filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(&wanted) && !line.contains("pagecache run")).collect()
}

#[test]
fn workloads_run_cached_and_direct_and_leave_what_the_benchmark_promises() {
    let home = scratch();
    let said =
        well(&run(home.path(), &["run", "-c", "small.ini", "-o", "out", "all", "--cache-limit", "none"]));
    assert!(said.contains("Workload             Mode     IOPS         BW(MB/s)   Lat"), "{said}");
    assert_eq!(said.matches("improve").count(), 2, "{said}");
    let out = home.path().join("out");
    assert!(fs::read_to_string(out.join("summary.txt")).unwrap().contains("Winners of caching"));
    for workload in ["reader", "mixed"] {
        for mode in ["cached", "direct"] {
            let raw = fs::read_to_string(out.join(format!("{workload}_{mode}.json"))).unwrap();
            let raw: Value = serde_json::from_str(&raw).unwrap();
            assert!(raw["fio version"].as_str().unwrap().starts_with("fio-"));
            let log = fs::read_to_string(out.join(format!("iostat/{workload}_{mode}.log"))).unwrap();
            assert!(log.contains("rareq-sz") && log.contains("%util"));
            // fio's own numbers, unchanged.
            if workload == "reader" {
                let iops = raw["jobs"][0]["read"]["iops"].as_f64().unwrap();
                assert!(said.contains(&format!(" {mode:<8} {iops:<12.0} ")), "{iops} in {said}");
            }
        }
    }
    for file in ["report.html", "plots/iops.svg", "plots/improvement.png", "plots/latency_ccdf.png"] {
        assert!(fs::metadata(out.join(file)).unwrap().len() > 1000, "{file}");
    }
    // The files are used again: they are the same ones.
    let file = home.path().join("test_file_8M");
    let made = fs::metadata(&file).unwrap();
    let again =
        run(home.path(), &["run", "-c", "small.ini", "-o", "out", "reader", "--modes", "cached", "--json"]);
    let again: Value = serde_json::from_str(&well(&again)).unwrap();
    assert!(again["rows"].as_array().unwrap().iter().filter(|row| row["workload"] == "mixed").count() >= 2);
    assert_eq!(again["manifest"]["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(fs::metadata(&file).unwrap().ino(), made.ino());
    // Made anew from the raw results, the summary is the same.
    let summary = fs::read_to_string(out.join("summary.txt")).unwrap();
    fs::remove_file(out.join("summary.txt")).unwrap();
    let analyzed = well(&run(home.path(), &["analyze", "out"]));
    assert_eq!((&analyzed, &fs::read_to_string(out.join("summary.txt")).unwrap()), (&summary, &summary));
    let report =
        well(&memfold(home.path()).current_dir(home.path()).args(["report", "out"]).output().unwrap());
    assert_eq!(report, analyzed);
    assert!(well(&run(home.path(), &["clean"])).contains("removed test_file_8M (8.00 MiB)"));
    assert_eq!(names(home.path()), ["out", "small.ini"]);
}

#[test]
fn what_cannot_be_run_is_named_before_anything_is_made() {
    let home = scratch();
    let say = |args: &[&str], code| refusal(&run(home.path(), args), code);
    assert!(
        say(&["run", "nobody"], 2).contains("there is no workload \"nobody\"; there are steady_reader_d1")
    );
    assert!(say(&["run", "-c", "missing.ini", "all"], 2).contains("-c missing.ini: No such file"));
    fs::write(home.path().join("bad.ini"), "[w]\nfile_size = 1G\nblock_size = 4k\npattern = seq\n").unwrap();
    let said = say(&["run", "-c", "bad.ini", "w"], 2);
    assert!(
        said.contains("bad.ini: line 4: pattern: \"seq\" is no pattern; there are read, write"),
        "{said}"
    );
    assert!(say(&["run", "all", "--dir", "/dev/shm"], 3).contains("lies in memory (tmpfs)"));
    assert!(say(&["run", "all", "--dir", "/dev/null"], 2).contains("it is no directory"));
    fs::write(home.path().join("huge.ini"), "[w]\nfile_size=16T\nblock_size=4k\npattern=read\n").unwrap();
    assert!(say(&["run", "-c", "huge.ini", "w"], 2).contains("use --scale 1/16"));
    let mut without_fio = command(home.path(), &["run", "-c", "small.ini", "all"]);
    let said = refusal(&without_fio.env("PATH", "/nowhere").output().unwrap(), 3);
    assert!(said.contains("apt-get install fio"), "{said}");
    assert!(say(&["run", "all", "--scale", "2"], 2).contains("1/16"));
    assert!(say(&["analyze", "nothing"], 2).contains("holds no results"));
    assert!(!home.path().join("fairness_results").exists());
    assert_eq!(names(home.path()), ["bad.ini", "huge.ini", "small.ini"]);
}

#[test]
fn the_workloads_are_listed_from_the_file_that_is_there() {
    let home = scratch();
    let listed = well(&run(home.path(), &["list"]));
    assert_eq!(listed.lines().count(), 9, "{listed}");
    let line = listed.lines().find(|line| line.starts_with("bursty_writer_d32")).unwrap();
    assert!(line.contains("Random write, high concurrency") && line.contains("16G"), "{line}");
    let ini = well(&run(home.path(), &["list", "--ini"]));
    fs::write(home.path().join("fairness_configs.ini"), ini.split("[steady_reader_d32]").next().unwrap())
        .unwrap();
    assert_eq!(well(&run(home.path(), &["list"])).lines().count(), 2);
}

#[test]
fn tenants_run_side_by_side_with_remedies_and_all_groups_are_gone() {
    let home = scratch();
    let args =
        ["corun", "-c", "small.ini", "--victim", "reader", "--neighbor", "mixed", "--cache-limit", "64M"];
    let options =
        ["--isolation", "memcg,memcg-min", "--neighbor-dontcache", "--mechanism-rate", "4", "--json"];
    let child = command(home.path(), &[&args[..], &options].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(3) {
        // No memory cgroup can be made here, as in most containers; what is said tells what to do.
        let said = refusal(&output, 3);
        assert!(said.contains("no memory cgroup can be made here: run as root"), "{said}");
        return;
    }
    let said: Value = serde_json::from_str(&well(&output)).unwrap();
    let arms = said["arms"].as_array().unwrap();
    let names: Vec<&str> = arms.iter().map(|arm| arm["name"].as_str().unwrap()).collect();
    let wanted = ["victim-alone", "neighbor1-alone", "none", "memcg", "memcg-min", "dontcache", "evict-only"];
    assert_eq!(names, [&wanted[..], &["evict-and-write"]].concat());
    for arm in arms.iter().filter(|arm| arm["unsupported"].is_null()) {
        for tenant in arm["tenants"].as_array().unwrap() {
            assert!(tenant["iops"].as_f64().unwrap() > 0.0 && tenant["p99_ns"].is_number(), "{arm}");
        }
    }
    let jain = arms[2]["jain"].as_f64().unwrap();
    assert!((0.5..=1.0).contains(&jain), "{jain}");
    assert!(arms[0]["tenants"][0]["resident_bytes"].as_f64().unwrap() > 0.0);
    let out = home.path().join("corun_results");
    // The victim's file was read beforehand, and is not dropped at its start. (What is in the cache others of these tests decide, too.)
    let job = fs::read_to_string(out.join("jobs/victim-alone-00_0_reader.fio")).unwrap();
    assert!(job.contains("\ninvalidate=0\n") && !job.contains("pre_read"), "{job}");
    for file in ["summary.txt", "report.html", "result.json", "plots/residency.png", "plots/slowdown.svg"] {
        assert!(fs::metadata(out.join(file)).unwrap().len() > 500, "{file}");
    }
    assert_eq!(groups(pid), [""; 0]);
}

/// Starts a run, waits for `until`, interrupts it, and checks that nothing is left but what was there.
fn interrupted(args: &[&str], until: impl Fn(&Path) -> bool) {
    let home = scratch();
    let mut child = command(home.path(), args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !until(home.path()) {
        assert!(begun.elapsed() < LIMIT, "the run does not get there");
        if let Some(status) = child.try_wait().unwrap() {
            // Without cgroups there is nothing to interrupt.
            assert_eq!(status.code(), Some(3), "{args:?} ended before it was interrupted");
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // SAFETY: our own child, which was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(refusal(&output, 130).contains("interrupted"));
    let left: Vec<String> = names(home.path())
        .into_iter()
        .filter(|name| name != "small.ini" && !name.ends_with("_results"))
        .collect();
    assert_eq!(left, [""; 0], "{args:?}");
    assert_eq!(groups(pid), [""; 0], "{args:?}");
    assert_eq!(processes_with(home.path()), [""; 0], "{args:?}");
    for results in ["fairness_results", "corun_results"] {
        let parts = names(&home.path().join(results));
        assert!(parts.iter().all(|name| !name.ends_with(".part")), "{parts:?}");
    }
}

#[test]
fn an_interruption_while_files_are_written_leaves_nothing() {
    interrupted(&["run", "--scale", "1/4", "--runtime", "1", "bursty_reader_d1"], |home| {
        names(home).iter().any(|name| name.ends_with(".part"))
    });
}

#[test]
fn an_interruption_while_fio_runs_leaves_nothing() {
    let args = ["run", "-c", "small.ini", "--runtime", "100", "--cache-limit", "64M", "reader"];
    interrupted(&args, |home| {
        !processes_with(home).is_empty() || names(home).contains(&"test_file_8M".into())
    });
    interrupted(&args, |home| home.join("fairness_results/reader_cached.part").exists());
}

#[test]
fn an_interruption_of_tenants_leaves_nothing() {
    let args =
        ["corun", "-c", "small.ini", "--victim", "reader", "--neighbor", "mixed", "--cache-limit", "64M"];
    let at = |part: &'static str| move |home: &Path| home.join("corun_results").join(part).exists();
    let quick = |more: &[&str]| {
        let all = [&args[..], more].concat();
        all.iter().map(|arg| (*arg).to_owned()).collect::<Vec<String>>()
    };
    let long = quick(&["--runtime", "100", "--mechanism-rate", "4"]);
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    interrupted(&long, at("victim-alone-00_0_reader.part"));
    let engine = quick(&["--runtime", "1", "--mechanism-rate", "4", "--neighbor-dontcache"]);
    let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
    interrupted(&engine, at("dontcache-00_0_reader.part"));
}

#[test]
fn what_a_killed_run_left_is_gone_after_the_next() {
    let home = scratch();
    let args = ["run", "-c", "small.ini", "--runtime", "100", "--cache-limit", "64M", "reader"];
    let mut child = command(home.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let raw = home.path().join("fairness_results/reader_cached.part");
    let begun = Instant::now();
    while !raw.exists() {
        assert!(begun.elapsed() < LIMIT, "the run does not get there");
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(3));
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    // fio goes with its parent, and the group with the next command that makes or removes something.
    well(&run(home.path(), &["clean"]));
    assert_eq!(groups(pid), [""; 0]);
    assert_eq!(processes_with(home.path()), [""; 0]);
    assert!(!home.path().join("test_file_8M").exists());
}
