//! The experiments run to their end and measure what they say. No figure is judged.

use memfold_bench::experiment::Report;
use memfold_bench::worker::{Order, Program};
use memfold_bench::{fault, fold, overhead};
use memfold_e2e::machine;
use memfold_pager::activity::Activity;
use memfold_pager::codec::{CodecId, CODEC_NUMBERS};
use std::path::Path;

fn program() -> Program {
    Program {
        path: env!("CARGO_BIN_EXE_memfold-e2e").into(),
        arguments: vec!["worker".into()],
        library: memfold_e2e::preload_library(),
    }
}

/// Whether a zram device can be had; `swap.rs` tests what is said where it cannot.
fn zram() -> bool {
    // SAFETY: no arguments, no effects.
    let root = unsafe { libc::geteuid() } == 0;
    root && Path::new("/sys/class/zram-control").exists()
}

#[test]
fn the_fault_benchmark_touches_evicted_pages_under_every_condition() {
    let _alone = machine::alone_with(machine::SWAP);
    let options = fault::Options {
        bytes: 8 << 20,
        rounds: 2,
        hogs: 1,
        vs: zram().then_some(fault::Rival::Zram),
        tier: None,
        algorithm: "lz4".into(),
        pin: None,
        steps: false,
        seed: 1,
    };
    let mut seen = 0;
    let report = Report::of(options, &program(), &mut |advance| seen = advance.done).expect("measured").found;
    let arms = 1 + usize::from(zram());
    assert_eq!(seen as usize, 4 * 2 * arms);
    let conditions: Vec<(usize, Order)> = report.conditions.iter().map(|c| (c.hogs, c.order)).collect();
    assert_eq!(
        conditions,
        [(0, Order::Random), (0, Order::Sequential), (1, Order::Random), (1, Order::Sequential)]
    );
    for condition in &report.conditions {
        assert_eq!(condition.arms.len(), arms);
        assert_eq!(condition.folded_over_peer.is_some(), zram());
        for arm in &condition.arms {
            let pages = 2 * (8 << 20) / 4096;
            assert!(arm.evicted_pages * 100 >= pages * 99, "{arm:?}");
            assert_eq!(arm.touch_ns.count as usize + arm.skipped_pages, pages, "{arm:?}");
        }
    }
    assert!(report.held.iter().all(|held| held.memory_bytes > 0 && held.memory_bytes < held.original_bytes));
    let samples: u64 = report.samples().map(|sample| sample.count).sum();
    assert_eq!(samples, report.runs.iter().map(|run| run.touched).sum::<u64>());
    assert!(!report.agent_threads.is_empty(), "nobody serves the faults");
    for run in &report.runs {
        assert_eq!(run.served.is_some(), run.arm == "folded");
        let served = run.served.unwrap_or_default();
        assert!(served.real_time <= served.waits, "{run:?}");
        assert!(report.real_time.permitted || served.real_time == 0, "{run:?}");
    }
}

#[test]
fn the_fault_benchmark_touches_what_lies_on_an_engine_beside_plain_gets() {
    let mut engine = memfold_e2e::engine::Engine::start(&[]);
    let options = fault::Options {
        bytes: 4 << 20,
        rounds: 2,
        hogs: 0,
        vs: Some(fault::Rival::Get),
        tier: Some(format!("redis://{}", engine.address())),
        algorithm: "lz4".into(),
        pin: None,
        steps: false,
        seed: 1,
    };
    let none = fault::Options { tier: None, ..options.clone() };
    let refused = Report::of(none, &program(), &mut |_| ()).expect_err("there is no engine");
    assert!(refused.to_string().contains("--tier redis://HOST:PORT"), "{refused:#}");
    let report = Report::of(options, &program(), &mut |_| ()).expect("measured").found;
    for run in &report.runs {
        let all = if run.arm == "get" { 64 } else { 1024 };
        assert!(run.evicted_pages * 100 >= all * 99 && run.touched > 0, "{run:?}");
    }
    assert_eq!(report.runs.len(), 8);
    memfold_e2e::wait_until(memfold_e2e::LIMIT, "nothing of it is left", || engine.keys() == 0);
}

#[test]
fn the_fold_benchmark_folds_every_heap_and_knows_what_each_page_was_compressed_by() {
    let _alone = machine::alone_with(machine::SWAP);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pages");
    std::fs::write(&file, "a line of a log, and another one\n".repeat(100_000)).unwrap();
    let options = fold::Options {
        heaps: vec!["json".parse().unwrap(), file.to_str().unwrap().parse().unwrap()],
        bytes: 4 << 20,
        rounds: 1,
        zram: vec!["lz4".into(), "no-such-codec".into()],
        blocks: vec![4 << 10, 16 << 10],
        seed: 1,
    };
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured").found;
    assert_eq!(report.heaps.iter().map(|heap| heap.pages).collect::<Vec<_>>(), [1024, 3_300_000 / 4096]);
    let arms = 1 + usize::from(zram());
    for heap in &report.heaps {
        assert_eq!((heap.runs.len(), heap.arms.len()), (arms, arms), "{heap:?}");
        let saved = |bytes: usize| {
            let plain =
                heap.blocks.iter().find(|blocks| (blocks.block_bytes, blocks.dictionary) == (bytes, false));
            plain.map(|blocks| blocks.saved_percent)
        };
        assert!(saved(16 << 10) > saved(4 << 10) && saved(4 << 10) > Some(10.0), "{heap:?}");
        assert!(heap.arms.iter().all(|arm| arm.saved_percent > 10.0 && arm.cpu_us > 0.0), "{heap:?}");
        let folded = &heap.runs.iter().find(|run| run.arm == "memfold").unwrap().folded;
        let inside = folded.pager.as_ref().unwrap();
        let known = |number: usize| CodecId::from_bits(number as u64).is_some();
        let by_codec: u64 = (0..CODEC_NUMBERS).filter(|&n| known(n)).map(|n| inside.pages_by_codec[n]).sum();
        // The others are one word repeated, and some of the worker's own.
        assert!(by_codec > 700 && by_codec as usize <= folded.pages, "{inside:?}");
        for activity in
            [Activity::Look, Activity::SetAside, Activity::Compress, Activity::Keep, Activity::Drop]
        {
            assert!(inside.activity_ns[activity as usize] > 0, "{activity:?}: {inside:?}");
        }
    }
    assert_eq!(report.rows().count(), 2 * arms);
    let left: Vec<&str> = report.skipped.iter().map(|left| left.what.as_str()).collect();
    let lacking = if zram() { vec!["zram no-such-codec"] } else { vec!["zram lz4", "zram no-such-codec"] };
    assert_eq!(left, lacking, "{:?}", report.skipped);
}

#[test]
fn the_overhead_benchmark_folds_the_idle_program_and_finds_its_bytes_again() {
    let options = overhead::Options {
        busy_bytes: 4 << 20,
        idle_bytes: 16 << 20,
        millis: 100,
        rounds: 1,
        watch_millis: 500,
        cold_age: "100ms".into(),
        seed: 1,
    };
    let report = Report::of(options, &program(), &mut |_| {}).expect("measured").found;
    assert_eq!(report.busy.iter().map(|busy| busy.program).collect::<Vec<_>>(), overhead::PROGRAMS);
    assert!(report.idle.counters.pages.evicted > 1000, "{:?}", report.idle);
    assert!(report.idle.rss_after_bytes < report.idle.rss_before_bytes, "{:?}", report.idle);
}
