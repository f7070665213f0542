use super::files::write;
use super::results::Results;
use super::single_run::{Foreseen, Run};
use super::*;
use crate::workload::Data;
use memfold_stats::Histogram;
use std::fs;
use std::path::Path;

fn options(runs: usize) -> Options {
    let measures = Measures {
        millis: 100,
        bytes: 1 << 20,
        workers: 1,
        seed: 1,
        data: Data::Mixed,
        rate: 0.0,
        cold_millis: 100,
        hot_percent: None,
        cold_rate: None,
        phase_millis: None,
        max_cpu_percent: None,
    };
    let workloads = vec![Kind::ZipfHeap, Kind::MmapChurn];
    let arms = vec![Arm::Baseline, Arm::Pager];
    Options { workloads, arms, runs, measures, out: PathBuf::new(), max_cpu: None, json: false }
}

/// A run that saves 40 of 100 MiB and does a tenth fewer units if it is the pager's.
fn made_up(workload: Kind, repeat: usize, arm: Arm) -> Run {
    let (units, mib) = if arm == Arm::Pager { (90.0, 60.0) } else { (100.0, 100.0) };
    let mut latencies = Histogram::default();
    (1..100).for_each(|us| latencies.record(us * 1000));
    let metrics = Metrics {
        units_per_s: Some(units * (repeat + 1) as f64),
        elapsed_ms: Some(100.0),
        footprint_mean_bytes: Some(mib * f64::from(1 << 20)),
        pager_fault_missing_p99_ns: (arm == Arm::Pager).then_some(9_000.0),
        ..Metrics::default()
    };
    let sample = |at: u32| Sample {
        at_ms: f64::from(at),
        resident_bytes: mib as u64 * (1 << 20),
        swap_bytes: 0,
        evicted_bytes: 0,
        store_bytes: 0,
        aside_bytes: 0,
        cold_bytes: Some(8),
        foreseen: Foreseen {
            predicted: u64::from(at) * 100,
            hit: u64::from(at) * 80,
            wasted: u64::from(at) * 10,
        },
    };
    Run { workload, repeat, arm, metrics, samples: (0..3).map(sample).collect(), latencies }
}

fn filled(directory: &Path, options: &Options) -> Folder {
    let folder = begin(directory, options).unwrap();
    for (workload, repeat, arm) in options.plan() {
        folder.keep(&made_up(workload, repeat, arm)).unwrap();
    }
    folder
}

fn ratio_of(results: &Results, workload: Kind) -> memfold_stats::Ratio {
    results.throughput.iter().find(|row| row.workload == workload).unwrap().ratio
}

#[test]
fn the_arms_of_a_repeat_follow_each_other_and_take_turns_at_being_first() {
    let plan = options(2).plan();
    assert_eq!(plan.len(), 8);
    let arms: Vec<Arm> = plan.iter().map(|(_, _, arm)| *arm).collect();
    assert_eq!(arms[..4], [Arm::Baseline, Arm::Pager, Arm::Baseline, Arm::Pager]);
    assert_eq!(arms[4..], [Arm::Pager, Arm::Baseline, Arm::Pager, Arm::Baseline]);
}

#[test]
fn runs_become_ratios_savings_tables_plots_and_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let folder = filled(directory.path(), &options(6));
    let results = write(&folder).unwrap();
    let ratio = ratio_of(&results, Kind::ZipfHeap);
    assert!((ratio.median - 0.9).abs() < 1e-9 && ratio.differs, "{ratio}");
    assert_eq!(results.median(Kind::ZipfHeap, Arm::Pager, "saved_pct_of_resident"), Some(40.0));
    assert_eq!(results.median(Kind::ZipfHeap, Arm::Baseline, "saved_bytes_mean"), Some(0.0));
    let name = "units_per_sec_ratio_pager_vs_baseline";
    assert!((results.median(Kind::MmapChurn, Arm::Pager, name).unwrap() - 0.9).abs() < 1e-9);
    for plot in [
        "throughput_ratio_by_workload",
        "pager_daemon_cpu_breakdown",
        "fault_missing_latency_p95_p99",
        "restore_latency_p95_p99",
        "pager_activity_counts",
        "mmap_churn_range_ops_vs_faults",
        "pager_cpu_vs_throughput_ratio",
        "memory_saved_vs_throughput",
        "latency_ccdf",
        "resident_over_time",
        "foresight_over_time",
    ] {
        for extension in ["svg", "png"] {
            assert!(
                directory.path().join(format!("plots/{plot}.{extension}")).exists(),
                "{plot}.{extension}"
            );
        }
    }
    let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(text("all_runs_long.csv").lines().count(), 1 + 2 * 6 * 2);
    assert!(
        text("aggregate.csv").contains("pager_fault_missing_p99_ns,6,9000.0"),
        "{}",
        text("aggregate.csv")
    );
    assert!(
        text("aggregate_summary.txt").contains("0.900 [0.900, 0.900]"),
        "{}",
        text("aggregate_summary.txt")
    );
    assert!(text("report.html").contains("zipf_heap"));
}

#[test]
fn a_run_in_which_half_was_never_folded_counts_as_the_slowest_and_not_as_missing() {
    let folded_after = |seconds: [Option<f64>; 6]| {
        let directory = tempfile::tempdir().unwrap();
        let folder = begin(directory.path(), &options(6)).unwrap();
        for (workload, repeat, arm) in options(6).plan() {
            let mut run = made_up(workload, repeat, arm);
            run.metrics.half_of_cold_folded_s = seconds[repeat].filter(|_| arm.folds());
            folder.keep(&run).unwrap();
        }
        let results = write(&folder).unwrap();
        let median = |arm| results.median(Kind::ZipfHeap, arm, "half_of_cold_folded_s");
        assert_eq!(median(Arm::Baseline), None);
        let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(!text("aggregate.csv").contains("inf"), "{}", text("aggregate.csv"));
        (median(Arm::Pager), results.to_string(), text("all_runs_long.csv"))
    };
    let (most, text, rows) = folded_after([Some(2.0), None, Some(3.0), Some(4.0), Some(5.0), None]);
    assert_eq!(most, Some(4.5));
    assert!(text.contains("half of it after 4.5 s"), "{text}");
    assert!(rows.lines().any(|row| row.contains(",4.0,") || row.contains(",4,")), "{rows}");
    let (few, text, _) = folded_after([Some(2.0), None, None, None, Some(5.0), None]);
    assert_eq!(few, None);
    assert!(text.contains("half of it never"), "{text}");
}

#[test]
fn every_plot_and_table_shows_each_arm_that_folds_or_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { arms: vec![Arm::Baseline, Arm::Pager, Arm::Daemon], ..options(6) };
    let folder = filled(directory.path(), &options);
    let results = write(&folder).unwrap();
    let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let plots: Vec<String> = fs::read_dir(directory.path().join("plots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    assert_eq!(plots.len(), 11);
    for plot in plots {
        let svg = text(&format!("plots/{plot}"));
        for arm in ["pager", "daemon"] {
            assert!(svg.contains(&format!("{arm}</text>")), "{plot} does not show {arm}");
        }
    }
    let page = text("report.html");
    assert!(
        page.contains("<td>zipf_heap</td><td>daemon</td>"),
        "the table of the pager leaves the daemon out"
    );
    assert_eq!(results.to_string().matches("pages compressed").count(), 4, "{results}");
}

#[test]
fn an_interrupted_experiment_goes_on_where_it_was_and_can_be_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(3);
    let folder = begin(directory.path(), &options).unwrap();
    let plan = options.plan();
    for &(workload, repeat, arm) in &plan[..5] {
        folder.keep(&made_up(workload, repeat, arm)).unwrap();
    }
    // As when the first call has ended.
    drop(folder);
    let again = begin(directory.path(), &options).unwrap();
    let left: Vec<_> = plan.iter().filter(|(w, r, a)| !again.has(*w, *r, *a)).collect();
    assert_eq!(left, plan[5..].iter().collect::<Vec<_>>());
    assert_eq!(again.record.sessions.len(), 2);
    let results = write(&again).unwrap();
    assert!(results.to_string().contains("unfinished: 5 of 12 runs"), "{results}");
}

#[test]
fn a_directory_that_holds_something_else_is_refused_and_nothing_in_it_changed() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, options: &Options| format!("{:#}", begin(path, options).unwrap_err());
    fs::write(directory.path().join("thesis.tex"), "years of work").unwrap();
    assert!(refused(directory.path(), &options(1)).contains("not empty"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let other = directory.path().join("other");
    filled(&other, &options(1));
    let longer = Options { measures: Measures { millis: 200, ..options(1).measures }, ..options(1) };
    let message = refused(&other, &longer);
    assert!(message.contains("millis: 100") && message.contains("millis: 200"), "{message}");
    let fewer = Options { workloads: vec![Kind::ZipfHeap], ..options(1) };
    assert!(refused(&other, &fewer).contains("zipf_heap,mmap_churn"));
    assert_eq!(Folder::open(&other).unwrap().runs().unwrap().len(), 4);
    assert!(Folder::open(directory.path()).is_err());
}

#[test]
fn a_directory_that_another_call_writes_into_or_that_has_no_room_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, options: &Options| format!("{:#}", begin(path, options).unwrap_err());
    let busy = directory.path().join("busy");
    let held = begin(&busy, &options(1)).unwrap();
    assert!(refused(&busy, &options(1)).contains("in use"));
    drop(held);
    // A process that another test starts has a copy of every descriptor, and with it of the lock, until it executes its program.
    let again = (0..1000).find_map(|_| {
        begin(&busy, &options(1)).ok().or_else(|| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            None
        })
    });
    assert!(again.is_some());
    let endless = Options { runs: usize::MAX >> 8, ..options(1) };
    assert!(refused(&directory.path().join("full"), &endless).contains("too little room"));
}

#[test]
fn whoever_folds_a_workload_is_told_its_share_of_a_cpu_in_the_words_of_the_settings() {
    let mut measures = options(1).measures;
    assert_eq!(measures.settings(), [(Setting::ColdAge, "100ms".into())]);
    for percent in [0.001, 0.5, 3.0, 100.0] {
        measures.max_cpu_percent = Some(percent);
        let (setting, value) = &measures.settings()[1];
        assert_eq!(*setting, Setting::MaxCpu);
        assert_eq!(setting.parse(value), Ok((percent * 1e4).round() as u64), "{value}");
    }
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused_before_it_begins() {
    let refused = |options: Options| options.check().unwrap_err().to_string();
    assert!(refused(Options { arms: vec![Arm::Pager], ..options(1) }).contains("baseline"));
    assert!(refused(Options { arms: vec![Arm::Baseline, Arm::Baseline], ..options(1) }).contains("null"));
    let huge = Measures { bytes: 1 << 45, ..options(1).measures };
    assert!(refused(Options { measures: huge, ..options(1) }).contains("too little memory"));
    assert!("swap".parse::<Arm>().unwrap_err().contains("zram"));
}
