//! Two minutes of torture: all kinds of work at once, on every way into the kernel, while a saboteur has everything evicted
//! and turns every setting; a fifth of it in a program that runs plainly, and is attached to and detached from at random. `make torture` goes on for hours.

use memfold_e2e::agent::{counter, may_attach, memfold_with_agent, HARSH};
use memfold_e2e::engine::Engine;
use memfold_e2e::{memfold, run, scratch, LIMIT};
use memfold_stats::Rng;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Four rounds, and that of a program that is attached to, are two minutes.
const SECONDS: u32 = 24;

/// The disk of rounds that have one: what was stored goes there at once.
const DISK: &str = "disk=/var/tmp,size=1G,after=10ms";

const VERIFIER: &str = env!("CARGO_BIN_EXE_memfold-e2e");

fn arguments(what: &str, seed: u32) -> [String; 4] {
    [what.into(), SECONDS.to_string(), "4".into(), seed.to_string()]
}

/// One round in a process of its own, with what goes below memory on this tier.
fn survives(seed: u32, tier: &str) {
    let mut verifier = Command::new(VERIFIER);
    verifier.args(arguments("torture", seed));
    let folding = run::harsh().variable("MEMFOLD_TIER", tier);
    expect_survival(seed, run::run_folded(verifier, &folding, LIMIT));
}

/// A round whose tier is an engine that is killed again and again, and comes back with what it had.
fn survives_beside_an_engine(seed: u32) {
    let lasting = ["--appendonly", "yes", "--appendfsync", "no"];
    let mut engine = Engine::start(&lasting);
    let home = scratch();
    let mut folded = memfold(home.path());
    folded.args(["run", "--quiet", "--start-at", "0", "--cold-age", "20ms", "--recompress-age", "50ms"]);
    folded.args(["--max-stall", "100%", "--max-cpu", "100%"]);
    folded.args(["--tier", &format!("redis://{},size=1G,after=10ms", engine.address())]);
    folded.arg("--").arg(VERIFIER).args(arguments("torture", seed));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                std::thread::sleep(Duration::from_secs(4));
                engine.kill();
                std::thread::sleep(Duration::from_millis(500));
                engine.start_again(&lasting);
            }
        });
        let outcome = run::finish(folded, LIMIT);
        over.store(true, SeqCst);
        expect_survival(seed, outcome);
    });
}

fn expect_survival(seed: u32, outcome: run::Outcome) {
    let outcome = outcome.expect_success(&format!("torture, seed {seed}"));
    let report: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("the report is JSON");
    // The verifier says so where the machine has none of it.
    let rings: &[&str] = match outcome.stderr.contains("io_uring is left out") {
        true => &[],
        false => &["io_uring", "registered_buffers"],
    };
    for way in ["pipe", "vectors", "messages", "remote", "futex"].iter().chain(rings) {
        assert!(report["calls"][way].as_u64() > Some(0), "nothing went to the kernel by {way}: {report}");
    }
    let pager = |name: &str| report["pager"]["counters"][name].as_u64().unwrap_or(0);
    assert!(
        pager("pages_evicted") > 1000 && pager("pages_restored") > 1000,
        "hardly anything was evicted: {report}"
    );
}

/// Attaches to a program and detaches from it until it has ended. How often it did, and how many pages were folded.
fn come_and_go(home: &Path, pid: u32, seed: u32) -> (u32, u64) {
    let (program, pid, mut rng) =
        (PathBuf::from(format!("/proc/{pid}")), pid.to_string(), Rng::new(seed.into()));
    let (mut times, mut evicted) = (0, 0);
    let ask = |words: &[&str]| -> Output {
        memfold_with_agent(home).args(words).output().expect("memfold can be executed")
    };
    // It may end at any time. What else is refused is a matter of the moment: it shares its memory with a child, or no thread of it can be stopped.
    let done = |words: &[&str], refused: Option<&str>| {
        let output = ask(&[words, &[&pid]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let of_moment = ["shares its memory", "try again", "has ended", "there is no process"];
        let mut accepted = of_moment.into_iter().chain(refused);
        let fine = output.status.success() || accepted.any(|why| said.contains(why));
        assert!(fine, "memfold {words:?}: {said}");
        output.status.success()
    };
    while program.exists() {
        let below = [["--tier", DISK].as_slice(), &[]][rng.below(2) as usize];
        let attached =
            done(&[["attach", "--quiet"].as_slice(), &HARSH, below].concat(), Some("is folded already"));
        if attached {
            times += 1;
            std::thread::sleep(Duration::from_millis(rng.below(1500)));
            // Whether there is time for it is not looked at.
            ask(&["ctl", &pid, ["evict", "restore", "sleep", "wake"][rng.below(4) as usize]]);
            let stat = ask(&["stat", "--json", &pid]);
            assert_eq!(counter(&stat, "lost"), 0);
            evicted += counter(&stat, "evicted");
        }
        // An agent that was put there is found again.
        done(&["detach", "--quiet"], (!attached).then_some("was not attached to"));
        std::thread::sleep(Duration::from_millis(rng.below(200)));
    }
    (times, evicted)
}

#[test]
fn no_byte_is_lost_in_two_minutes_of_torture() {
    survives(1, "");
    survives(2, DISK);
    survives_beside_an_engine(3);
    survives(4, DISK);
}

/// A program that nothing was preloaded into, as root.
#[test]
fn no_byte_is_lost_of_a_program_that_is_attached_to_and_detached_from_at_random() {
    const SEED: u32 = 5;
    if !may_attach() {
        return;
    }
    let home = scratch();
    let mut verifier = Command::new(VERIFIER);
    verifier.args(arguments("attached", SEED));
    let ((tell, hear), runtime) = (channel(), home.path());
    let (outcome, (times, evicted)) = std::thread::scope(|scope| {
        let actor = scope.spawn(move || come_and_go(runtime, hear.recv().expect("it is started"), SEED));
        let outcome = run::finish_told(verifier, LIMIT, |pid| tell.send(pid).expect("somebody waits for it"));
        (outcome, actor.join().expect("nothing was refused that may not be"))
    });
    let outcome = outcome.expect_success(&format!("attached, seed {SEED}"));
    let report: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("the report is JSON");
    assert!(report["bytes_verified"].as_u64() > Some(1 << 20), "{report}");
    assert!(report["children"].as_u64() > Some(0), "no child was forked: {report}");
    assert!(report["pager"].is_null(), "it was started plainly: {report}");
    eprintln!("attached to {times} times, {evicted} pages evicted");
    assert!(times > 1 && evicted > 1000, "attached to {times} times, {evicted} pages evicted");
}
