//! Two minutes of torture: all kinds of work at once, on every way into the kernel, while a saboteur has everything evicted
//! and turns every setting. `make torture` goes on for hours.

use memfold_e2e::engine::Engine;
use memfold_e2e::{memfold, run, scratch};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);
const SECONDS: u32 = 30;

/// The disk of rounds that have one: what was stored goes there at once.
const DISK: &str = "disk=/var/tmp,size=1G,after=10ms";

const VERIFIER: &str = env!("CARGO_BIN_EXE_memfold-e2e");

fn arguments(seed: u32) -> [String; 4] {
    ["torture".into(), SECONDS.to_string(), "4".into(), seed.to_string()]
}

/// One round in a process of its own, with what goes below memory on this tier.
fn survives(seed: u32, tier: &str) {
    let mut verifier = Command::new(VERIFIER);
    verifier.args(arguments(seed));
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
    folded.arg("--").arg(VERIFIER).args(arguments(seed));
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

#[test]
fn no_byte_is_lost_in_two_minutes_of_torture() {
    survives(1, "");
    survives(2, DISK);
    survives_beside_an_engine(3);
    survives(4, DISK);
}
