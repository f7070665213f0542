//! Two minutes of torture: all kinds of work at once, on every way into the kernel, while a saboteur has everything evicted
//! and turns every setting. `make torture` goes on for hours.

use memfold_e2e::run;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
const SECONDS: u32 = 30;

/// The disk of rounds that have one: what was stored goes there at once.
const DISK: &str = "disk=/var/tmp,size=1G,after=10ms";

/// One round in a process of its own, with what goes below memory on this tier.
fn survives(seed: u32, tier: &str) {
    let mut verifier = Command::new(env!("CARGO_BIN_EXE_memfold-e2e"));
    verifier.args(["torture", &SECONDS.to_string(), "4", &seed.to_string()]);
    let folding = run::harsh().variable("MEMFOLD_TIER", tier);
    let outcome = run::run_folded(verifier, &folding, LIMIT).expect_success(&format!("torture, seed {seed}"));
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
    (1..=4).for_each(|seed| survives(seed, if seed % 2 == 0 { DISK } else { "" }));
}
