//! `memfold heap`: what a profile says of a program whose functions hold known amounts of memory, some of it in use and some not.
//!
//! The program is `c/heap.c`, which is built without frame pointers. How much each function holds stands there too.

use memfold_e2e::holder::Holder;
use memfold_e2e::run::{program, run_plain, Server};
use memfold_e2e::{memfold, scratch, wait_until, LIMIT};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MIB: f64 = (1 << 20) as f64;

fn start(options: &[&str]) -> Holder {
    Holder::start("heap.c", &["-O2", "-fomit-frame-pointer", "-pthread"], options)
}

fn sampled(holder: &Holder) -> Value {
    let settings: Value = serde_json::from_slice(&holder.done("ctl", &["get", "--json"])).unwrap();
    settings["heap_sample"].clone()
}

fn profile_of(holder: &Holder) -> Value {
    serde_json::from_slice(&holder.done("heap", &["--json"])).expect("a profile")
}

/// Live, cold and folded bytes of the stacks that a function is in.
fn of(profile: &Value, function: &str) -> [f64; 3] {
    let mut sum = [0.0; 3];
    for stack in profile["stacks"].as_array().expect("stacks") {
        let calls = stack["calls"].as_array().expect("calls");
        if calls.iter().any(|call| call["function"] == function) {
            for (sum, key) in sum.iter_mut().zip(["live_bytes", "cold_bytes", "folded_bytes"]) {
                *sum += stack[key].as_f64().expect("a number");
            }
        }
    }
    sum
}

#[test]
fn each_function_holds_what_it_holds_and_what_nobody_touches_is_cold_and_folded() {
    let mut folded = start(&["--heap-sample", "16K", "--cold-age", "200ms", "--max-stall", "100%"]);
    folded.program.tell("hold");
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.15, "{found} of {expected}");
    let profile = profile_of(&folded);
    // Blocks of 1000 bytes take 1024, those of 300 000 whole pages.
    near(of(&profile, "hold_cold")[0], 24.5 * MIB);
    near(of(&profile, "hold_hot")[0], 8.2 * MIB);
    assert!(of(&profile, "hold_nothing")[0] < 0.1 * MIB);
    assert!(of(&profile, "main")[0] > 30.0 * MIB, "the walk ended too early: {profile}");
    let share = |function| {
        let [live, cold, folded_bytes] = of(&profile_of(&folded), function);
        (cold / live, folded_bytes / live)
    };
    wait_until(LIMIT, "what nobody touches to be folded", || share("hold_cold").1 > 0.8);
    wait_until(LIMIT, "what is used to be in memory", || share("hold_hot").1 < 0.2);
    // As much is folded as the pager says, but for what is not of the heap.
    let all = profile_of(&folded)["folded_bytes"].as_f64().unwrap();
    let evicted = folded.stat()["evicted_bytes"].as_f64().unwrap();
    assert!(all < 1.3 * evicted, "{all} of {evicted}");
    // By another thread than the one that allocated it, which never was sampled itself.
    folded.program.tell("free");
    assert!(of(&profile_of(&folded), "hold_cold")[0] < 0.1 * MIB);
    folded.end();
}

#[test]
fn a_program_is_sampled_for_as_long_as_it_is_asked_for_and_no_longer() {
    let mut folded = start(&["--cold-age", "1h"]);
    assert_eq!(sampled(&folded), 0);
    folded.done("heap", &["--for", "100ms"]);
    assert_eq!(sampled(&folded), 0, "it was left sampled");
    folded.done("heap", &["--start", "--mean", "32K"]);
    assert_eq!(sampled(&folded), 32 << 10);
    folded.program.tell("hold");
    let text = String::from_utf8(
        folded.done("heap", &["--svg", "a.svg", "--pprof", "a.pb.gz", "--folded", "a.txt"]),
    );
    let text = text.expect("text");
    assert!(text.contains("LIVE") && text.contains("filled < hold_cold < main"), "{text}");
    let file = |name: &str| fs::read(folded.home.path().join(name)).expect("it was written");
    let svg = String::from_utf8(file("a.svg")).expect("text");
    assert!(svg.contains("hold_cold") && svg.contains("nobody touches it"));
    let lines = String::from_utf8(file("a.txt")).expect("text");
    assert!(lines.lines().any(|line| line.contains(";main;hold_cold;filled ")), "{lines}");
    let mut unzip = Command::new(program("gzip", "gzip"));
    let mut unzip =
        unzip.arg("-dc").arg(folded.home.path().join("a.pb.gz")).stdout(Stdio::piped()).spawn().unwrap();
    let mut message = Vec::new();
    unzip.stdout.take().expect("piped").read_to_end(&mut message).unwrap();
    assert!(unzip.wait().unwrap().success());
    for word in ["hold_cold", "folded_space"] {
        assert!(message.windows(word.len()).any(|part| part == word.as_bytes()), "no {word} for pprof");
    }
    folded.done("heap", &["--stop"]);
    assert_eq!(sampled(&folded), 0);
    folded.end();
}

#[test]
fn what_cannot_be_profiled_says_why() {
    let folded = start(&[]);
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let bad = folded.memfold("heap", &["--mean", "0"]);
    assert!(bad.status.code() == Some(2) && said(&bad).contains("such as 512K"), "{}", said(&bad));
    let kept = folded.memfold("heap", &["--for", "10ms", "--svg", "/nowhere/a.svg"]);
    assert_eq!(kept.status.code(), Some(1));
    assert_eq!(sampled(&folded), 0, "it was left sampled");
    let plain = Server(Command::new("sleep").arg("600").spawn().expect("sleep is there"));
    let mut other = memfold(folded.home.path());
    other.args(["heap", &plain.0.id().to_string()]);
    let other = other.stdin(Stdio::null()).output().expect("memfold can be executed");
    assert!(
        other.status.code() == Some(1) && said(&other).contains("was not started by `memfold run`"),
        "{}",
        said(&other)
    );
    folded.end();
}

#[test]
fn a_report_of_misuse_names_the_calls_that_allocated_and_freed_the_block() {
    let home = scratch();
    let file = home.path().join("twice");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/twice.c");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.args(["-O1", "-rdynamic", "-fomit-frame-pointer", "-o"]).arg(&file).arg(source);
    run_plain(compiler, LIMIT).expect_success("cc");
    let report = |trace: &str| {
        let mut misuser = Command::new(&file);
        misuser.env("LD_PRELOAD", memfold_e2e::preload_library()).env("MEMFOLD_PROFILE", "secure");
        misuser.env("MEMFOLD_TRACE_ALLOC", trace).stdin(Stdio::null());
        let output = misuser.output().expect("it was built");
        assert!(!output.status.success() && output.stdout.is_empty(), "it was not caught");
        String::from_utf8(output.stderr).expect("text")
    };
    let traced = report("on");
    for line in
        ["a block was freed twice", "called by make_name+", "it was freed by drop_name+", "called by main+"]
    {
        assert!(traced.contains(line), "no {line:?} in:\n{traced}");
    }
    let plain = report("off");
    assert!(plain.contains("a block was freed twice") && !plain.contains("allocated by"), "{plain}");
}
