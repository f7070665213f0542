//! The experiments run to their end and measure what they say. No figure is judged.

use bench::worker::{Order, Program};
use bench::{fault, overhead};
use std::path::Path;

fn program() -> Program {
    Program {
        path: env!("CARGO_BIN_EXE_memfold-e2e").into(),
        arguments: vec!["worker".into()],
        library: e2e::preload_library(),
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
    let options = fault::Options {
        bytes: 8 << 20,
        rounds: 2,
        hogs: 1,
        zram: zram(),
        algorithm: "lz4".into(),
        pin: None,
        seed: 1,
    };
    let mut seen = 0;
    let report = fault::run(&options, &program(), &mut |advance| seen = advance.done).expect("measured");
    let arms = 1 + usize::from(zram());
    assert_eq!(seen as usize, 4 * 2 * arms);
    let conditions: Vec<(usize, Order)> = report.conditions.iter().map(|c| (c.hogs, c.order)).collect();
    assert_eq!(
        conditions,
        [(0, Order::Random), (0, Order::Sequential), (1, Order::Random), (1, Order::Sequential)]
    );
    for condition in &report.conditions {
        assert_eq!(condition.arms.len(), arms);
        assert_eq!(condition.folded_over_zram.is_some(), zram());
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
    let report = overhead::run(&options, &program(), &mut |_| {}).expect("measured");
    assert_eq!(report.busy.iter().map(|busy| busy.program).collect::<Vec<_>>(), overhead::PROGRAMS);
    assert!(report.idle.counters.pages_evicted > 1000, "{:?}", report.idle);
    assert!(report.idle.rss_after_bytes < report.idle.rss_before_bytes, "{:?}", report.idle);
}
