//! `memfold sim` as a person types it.

use memfold_e2e::command_line::{memfold, scratch};

/// A record of oracleGeneral.
fn record(object: u64) -> Vec<u8> {
    [&0u32.to_le_bytes()[..], &object.to_le_bytes(), &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
}

#[test]
fn a_trace_gives_the_misses_that_were_worked_out_by_hand() {
    let home = scratch();
    let trace = home.path().join("belady.bin");
    let objects = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5].map(|n| n + 1_000_000_007);
    std::fs::write(&trace, objects.into_iter().flat_map(record).collect::<Vec<u8>>()).unwrap();
    let mut command = memfold(home.path());
    command.arg("sim").arg("--trace").arg(&trace);
    let output = command.args(["--policy", "fifo,belady", "--size", "3,80%", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = said["results"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| (row["policy"].as_str().unwrap().to_owned(), row["size"].as_u64(), row["misses"].as_u64()))
        .collect();
    let row = |policy: &str, size, misses| (policy.to_owned(), Some(size), Some(misses));
    assert_eq!(rows, [row("fifo", 3, 9), row("fifo", 4, 10), row("belady", 3, 7), row("belady", 4, 6)]);
}

#[test]
fn what_cannot_be_simulated_is_named_and_ends_with_2() {
    let home = scratch();
    let trace = home.path().join("short.bin");
    std::fs::write(&trace, &record(1)[..20]).unwrap();
    let say = |args: &[&str]| {
        let mut command = memfold(home.path());
        let output = command.arg("sim").arg("--trace").arg(&trace).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(say(&[]).contains("truncated: 20 bytes are left at offset 0"));
    assert!(say(&["--policy", "plru"]).contains("there is no policy \"plru\"; there are lru, fifo"));
    assert!(
        say(&["--policy", "s3fifo:small=2"]).contains("\"small=2\" is no number in the parameter's range")
    );
    assert!(say(&["--size", "0"]).contains("give pages, at least 1"));
    std::fs::write(&trace, record(1)).unwrap();
    assert!(say(&["--size", "2"]).contains("more than the 1 different pages of the trace"));
}

/// Runs memfold, which must succeed, and returns its output.
fn said(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A made-up trace of 40 000 requests to 2000 pages, in the file `name` of `home`.
fn zipf(home: &std::path::Path, name: &str) -> std::path::PathBuf {
    let path = home.join(name);
    let options = ["trace", "generate", "zipf", "--pages", "2000", "--requests", "40000"];
    said(memfold(home).args(options).arg(&path));
    path
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_trace_is_the_same_in_every_format() {
    let home = scratch();
    let made = zipf(home.path(), "made.mft");
    let info = |path: &std::path::Path| {
        json(&said(memfold(home.path()).args(["trace", "info", "--json"]).arg(path)))
    };
    let facts = info(&made);
    assert_eq!(facts["requests"], 40_000);
    let mut from = made.clone();
    for name in ["a.csv", "b.csv.zst", "c.oracleGeneral.bin", "d.oracleGeneral.zst", "e.mft.zst", "f.mft"] {
        let to = home.path().join(name);
        said(memfold(home.path()).args(["trace", "convert"]).arg(&from).arg(&to));
        assert_eq!(info(&to), facts, "{name}");
        from = to;
    }
    assert_eq!(std::fs::read(&made).unwrap(), std::fs::read(&from).unwrap());
    assert!(std::fs::metadata(&made).unwrap().len() < 5 * 40_000);
}

#[test]
fn curves_are_printed_and_drawn_and_a_sample_comes_near_them() {
    let home = scratch();
    let trace = zipf(home.path(), "made.mft");
    let curves = |more: &[&str]| {
        let mut command = memfold(home.path());
        command.args(["sim", "--policy", "lru,clock", "--curve", "8", "--json", "--trace"]).arg(&trace);
        json(&said(command.args(more)))
    };
    let out = home.path().join("out");
    let exact = curves(&["--out", out.to_str().unwrap()]);
    for name in ["curves.json", "curves.csv", "curves.svg", "curves.png"] {
        assert!(std::fs::metadata(out.join(name)).unwrap().len() > 100, "{name}");
    }
    let sampled = curves(&["--sample", "400"]);
    assert_eq!(exact["rate"], 1.0);
    assert_eq!(exact["curves"][1]["points"].as_array().unwrap().len(), 8);
    assert!(sampled["rate"].as_f64().unwrap() < 0.5);
    let middle = |of: &serde_json::Value| of["curves"][0]["points"][5]["miss_ratio"].as_f64().unwrap();
    assert!((middle(&exact) - middle(&sampled)).abs() < 0.1, "{} and {}", middle(&exact), middle(&sampled));
}

/// A stand-in for libCacheSim's cachesim, by a name that tells it what to do.
fn stand_in(home: &std::path::Path, name: &str) -> std::path::PathBuf {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/tests/cachesim");
    let path = home.join(name);
    std::os::unix::fs::symlink(script, &path).unwrap();
    path
}

#[test]
fn a_ratio_is_printed_where_a_peer_ran_and_nowhere_else() {
    let home = scratch();
    let trace = zipf(home.path(), "made.mft");
    let run = |peer: Option<&std::path::Path>| {
        let mut command = memfold(home.path());
        command.args(["bench", "sim", "--json", "--size", "100", "--rounds", "2", "--policy", "lru,mglru"]);
        command.arg("--trace").arg(&trace);
        if let Some(peer) = peer {
            command.arg("--peer").arg(peer);
        }
        command.output().unwrap()
    };
    let rows = |peer| {
        let output = run(peer);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = json(&String::from_utf8(output.stdout).unwrap());
        assert_eq!(said["requests"], 40_000);
        [0, 1].map(|row| said["rows"][row]["peer"].clone())
    };
    assert!(rows(None).iter().all(serde_json::Value::is_null));
    let [lru, mglru] = rows(Some(&stand_in(home.path(), "cachesim")));
    assert_eq!((&lru["theirs_from_file"], &lru["ratio"]["pairs"]), (&8.0.into(), &2.into()));
    assert!(lru["ours_from_file"].as_f64().unwrap() > 0.0 && mglru.is_null());
    let complaint = |peer: &std::path::Path| {
        let output = run(Some(peer));
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = complaint(&home.path().join("nowhere"));
    assert!(said.contains("nowhere: No such file or directory; give the path of libCacheSim's"), "{said}");
    assert_eq!(code, Some(2));
    let mut command = memfold(home.path());
    command
        .args(["bench", "sim", "--requests", "1000", "--size", "10", "--peer"])
        .arg(home.path().join("cachesim"));
    let output = command.env("TMPDIR", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write the trace for the peer into /nowhere: No such file"), "{said}");
    assert!(said.contains("TMPDIR names another folder") && output.status.code() == Some(1), "{said}");
    let (code, said) = complaint(&stand_in(home.path(), "changed"));
    assert!(
        said.contains("printed \"lru: 40000 requests, hit ratio 0.5\" at lru, where cachesim ends with"),
        "{said}"
    );
    assert_eq!(code, Some(1));
}

#[test]
fn a_program_is_recorded_into_a_trace_that_can_be_simulated() {
    let home = scratch();
    let trace = home.path().join("true.mft");
    let mut command = memfold(home.path());
    command.args(["record", "--requests", "2000", "--exact", "--out"]).arg(&trace);
    assert_eq!(said(command.args(["--", "echo", "its own output"])), "its own output\n");
    let info = json(&said(memfold(home.path()).args(["trace", "info", "--json"]).arg(&trace)));
    assert!(info["requests"].as_u64().unwrap() > 10, "{info}");
    let code = memfold(home.path())
        .args(["record", "--out"])
        .arg(&trace)
        .args(["--", "sh", "-c", "exit 7"])
        .status()
        .unwrap()
        .code();
    assert_eq!(code, Some(7));
}

/// Records `touches.c`, for so many seconds, into `trace`. Returns what the program and what memfold said.
fn record_touches(trace: &std::path::Path, options: &[&str], seconds: &str) -> (String, String) {
    let home = trace.parent().unwrap();
    let program = home.join("touches");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("c/touches.c");
    let mut compiler = std::process::Command::new("cc");
    assert!(compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let mut command = memfold(home);
    command.arg("record").args(options).arg("--out").arg(trace).arg("--").arg(program).arg(seconds);
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // Its own exit code says that no byte was lost.
    assert_eq!(output.status.code(), Some(7), "{told}");
    (String::from_utf8(output.stdout).unwrap(), told)
}

/// How many intervals of a recording of so many seconds have every page that was in use, and that none has another but that of one system call.
fn whole_intervals(home: &std::path::Path, seconds: &str) -> usize {
    // As in the program.
    const PAGES: u64 = 2048;
    const CALLS: u64 = PAGES - 2;
    let (trace, csv) = (home.join("threads.mft"), home.join("threads.csv"));
    let (printed, told) = record_touches(&trace, &["--source", "probe", "--interval", "50ms"], seconds);
    assert!(told.contains("requests of") && told.contains("touches waited"), "{told}");
    let first: u64 = printed.trim().parse().unwrap();
    said(memfold(home).args(["trace", "convert"]).args([&trace, &csv]));
    let mut intervals = std::collections::BTreeMap::<u64, std::collections::BTreeSet<u64>>::new();
    for line in std::fs::read_to_string(&csv).unwrap().lines().skip(1) {
        let (time, object) = line.split_once(',').unwrap();
        let page: u64 = object.split(',').next().unwrap().parse().unwrap();
        if (first..first + PAGES).contains(&page) {
            let fresh = intervals.entry(time.parse().unwrap()).or_default().insert(page - first);
            assert!(fresh, "page {page} twice in interval {time}");
        }
    }
    // Up to the one behind that in which the last page was filled, an interval may have all pages; from that on in which the program begins to look at them
    // in the end, it may have those. Either is soon over, but on a busy machine.
    let busy = |page: &&u64| *page % 4 < 2;
    let filled = intervals.values().position(|pages| pages.contains(&(PAGES - 1))).unwrap_or(0);
    let looked = intervals.values().skip(filled + 2).position(|pages| pages.contains(&2));
    let end = looked.map_or(intervals.len(), |after| filled + 2 + after);
    let middle = filled + 2..end.min(intervals.len().saturating_sub(2));
    let (mut whole, mut calls) = (0, 0);
    for (n, pages) in intervals.values().enumerate().skip(middle.start) {
        let others = pages.iter().filter(|page| !busy(page) && (middle.contains(&n) || *page % 4 == 3));
        let others: Vec<u64> = others.copied().collect();
        assert!(others.is_empty() || others == [CALLS], "touched, it is said: {others:?}");
        calls += others.len();
        whole += usize::from(pages.iter().filter(busy).count() as u64 == PAGES / 2);
    }
    for page in (0..PAGES).filter(|page| page % 4 > 1 && *page != CALLS) {
        let seen = intervals.values().filter(|pages| pages.contains(&page)).count();
        let most = if page % 4 == 3 { 2 } else { 3 };
        assert!(seen <= most, "page {page} is touched in {seen} intervals, it is said");
    }
    assert!(calls <= 1, "the system call touched its page once");
    // On a busy machine the call may fall in the first intervals: that is none to go by.
    if calls == 1 {
        whole
    } else {
        0
    }
}

#[test]
fn what_threads_and_system_calls_touch_is_recorded_and_nothing_else() {
    let home = scratch();
    // A busy machine has fewer intervals in the same time, and threads that do not get through all of theirs.
    let mut lengths = ["1.5", "4", "12"].iter();
    assert!(
        lengths.any(|seconds| whole_intervals(home.path(), seconds) > 3),
        "no recording has four intervals with every page that was in use"
    );
    let files = std::fs::read_dir(home.path()).unwrap().flatten().map(|file| file.file_name());
    let left: Vec<_> = files.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "left beside the trace: {left:?}");
}

#[test]
fn a_recording_ends_where_it_was_told_to_and_the_program_goes_on() {
    let home = scratch();
    let trace = home.path().join("short.mft");
    let (_, told) = record_touches(&trace, &["--interval", "20ms", "--requests", "3000"], "1");
    assert!(told.contains("3 000 requests") && told.contains("went on alone"), "{told}");
}

#[test]
fn a_sweep_over_traces_and_policies_merges_what_each_run_says() {
    let home = scratch();
    let traces = [zipf(home.path(), "one.mft"), zipf(home.path(), "two.mft.zst")];
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/sweep");
    let merged = home.path().join("merged.json");
    for engine in ["local", "dask", "ray"] {
        let mut sweep = std::process::Command::new(&script);
        sweep.args(["--engine", engine, "--workers", "2", "--policies", "lru,belady", "--sizes", "10,100"]);
        sweep
            .arg("--binary")
            .arg(memfold_e2e::command_line::executable())
            .arg("--out")
            .arg(&merged)
            .arg("--traces")
            .args(&traces);
        let output = sweep.output().unwrap();
        if engine != "local" && output.status.code() == Some(3) {
            println!("not run: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        }
        assert!(output.status.success(), "{engine}: {}", String::from_utf8_lossy(&output.stderr));
        let rows = json(&std::fs::read_to_string(&merged).unwrap())["results"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 8);
        assert_eq!((&rows[0]["misses"], &rows[3]["misses"]), (&rows[4]["misses"], &rows[7]["misses"]));
        assert!(rows[0]["misses"].as_u64() > rows[2]["misses"].as_u64(), "{rows:?}");
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_nothing_but_the_trace() {
    let home = scratch();
    let dir = home.path().join("traces");
    std::fs::create_dir(&dir).unwrap();
    let mut command = memfold(home.path());
    command.args(["record", "--out"]).arg(dir.join("sleep.mft")).args(["--", "sleep", "60"]);
    let mut recorder = command.spawn().unwrap();
    let of = format!("/proc/{0}/task/{0}/children", recorder.id());
    let mut program = String::new();
    memfold_e2e::wait_until(memfold_e2e::LIMIT, "the program's start", || {
        // The witness of signals comes behind it.
        let children = std::fs::read_to_string(&of).unwrap_or_default();
        program = children.split_whitespace().next().unwrap_or_default().to_owned();
        // Once it has a control page it knows whose child it is.
        !program.is_empty()
            && memfold(home.path()).args(["stat", &program]).output().unwrap().status.success()
    });
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let left =
        || -> Vec<_> { std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    memfold_e2e::wait_until(memfold_e2e::LIMIT, "the program clears away", || left() == ["sleep.mft"]);
    // SAFETY: sends a signal to the program, which has 60 seconds to go.
    unsafe { libc::kill(program.parse().unwrap(), libc::SIGKILL) };
    // One whose program was killed too is cleared away by the next recorder there.
    std::fs::write(dir.join(".memfold-touches-x"), b"").unwrap();
    let mut command = memfold(home.path());
    command.args(["record", "--out"]).arg(dir.join("sleep.mft")).args(["--", "true"]);
    command.output().unwrap();
    assert_eq!(left(), ["sleep.mft"]);
}
