//! Every byte, while everything is evicted again and again; and that the verifier itself can fail.

use memfold_e2e::run::{self, Outcome};
use memfold_e2e::LIMIT;
use std::process::Command;

fn verifier(seconds: u32, threads: u32, seed: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memfold-e2e"));
    command.args(["verify", &seconds.to_string(), &threads.to_string(), &seed.to_string()]);
    command
}

fn report(outcome: &Outcome) -> serde_json::Value {
    let text = String::from_utf8_lossy(&outcome.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("no report: {error}\n{text}\n{}", outcome.stderr))
}

fn passes_folded(seconds: u32, threads: u32, seed: u32) {
    let folding = run::harsh();
    let outcome =
        run::run_folded(verifier(seconds, threads, seed), &folding, LIMIT).expect_success("verify, folded");
    let report = report(&outcome);
    let pager = |name: &str| report["pager"]["counters"][name].as_u64().unwrap_or(0);
    assert!(report["bytes_verified"].as_u64() > Some(1 << 20), "{report}");
    assert!(report["children"].as_u64() > Some(0), "no child was forked: {report}");
    assert!(report["pager"]["requests"].as_u64() > Some(0), "the pager answered nothing: {report}");
    assert!(
        pager("pages_evicted") > 1000 && pager("pages_restored") > 1000,
        "hardly anything was evicted: {report}"
    );
    run::expect_evictions(&folding, "verify");
}

#[test]
fn a_plain_run_finds_nothing_wrong() {
    let outcome = run::run_plain(verifier(4, 3, 1), LIMIT).expect_success("verify, plain");
    let report = report(&outcome);
    assert!(report["pager"].is_null() && report["mismatch_count"] == 0, "{report}");
}

#[test]
fn no_byte_is_lost_while_four_threads_and_a_saboteur_have_everything_evicted() {
    passes_folded(20, 4, 1);
}

#[test]
fn no_byte_of_a_single_thread_is_lost() {
    passes_folded(8, 1, 2);
}
