use super::figures::figures;
use super::measured::{Below, Pages};
use super::*;
use crate::manifest::Manifest;
use std::fs;

fn options(runs: usize) -> Options {
    Options {
        programs: vec![Kind::Python3, Kind::Redis],
        arms: vec![Arm::Plain, Arm::Folded],
        runs,
        bytes: 1 << 20,
        attach: false,
        together: 64,
        busy_millis: None,
        idle_millis: 31_000,
        tier: None,
        out: None,
        json: false,
        spoil: false,
        collect: false,
        leave_folded: false,
    }
}

/// A run that ends with 60 of 100 MiB if it is folded.
fn made_up(program: Kind, repeat: usize, arm: Arm) -> Run {
    let mib = |at_s: f64| if arm == Arm::Folded && at_s > 20.0 { 60 } else { 100 };
    let moment = |at_s: f64, closely: bool| Moment {
        at_s,
        resident_bytes: mib(at_s) << 20,
        anonymous_bytes: mib(at_s) << 20,
        pss_bytes: closely.then_some(mib(at_s) << 20),
        processes: 1,
        below: (arm == Arm::Folded).then(|| Below {
            stored_bytes: 20 << 20,
            tier_bytes: if at_s > 20.0 { 30 << 20 } else { 0 },
            tier_file_bytes: if at_s > 20.0 { 10 << 20 } else { 0 },
            tier_reads: at_s as u64 * 3,
        }),
    };
    let units = if arm == Arm::Folded { 99 } else { 100 } * (repeat as u64 + 1);
    let hot = Hot { units, busy_ns: 1_000_000_000, p99_ns: 5_000 };
    let pages = Pages { evicted: 10_240, restored: 1, second_chance: 0, lost: 0 };
    Run {
        program,
        repeat,
        arm,
        items: 10,
        load_s: 1.0,
        moments: vec![
            moment(0.0, true),
            moment(5.0, false),
            moment(10.001, true),
            moment(30.002, true),
            moment(31.0, false),
        ],
        hot_begin: hot,
        hot_end: hot,
        collect_s: None,
        verify_s: 0.5,
        exit_s: 0.25,
        cpu_s: 2.0,
        attached: None,
        folded: (arm == Arm::Folded).then(|| Folded {
            mode: "embedded".into(),
            reason: None,
            pages,
            stall_pct: 0.1,
            saved_bytes_peak: 40 << 20,
        }),
    }
}

fn report(options: Options, runs: Vec<Run>) -> Report {
    let versions = BTreeMap::from([("redis", "7".into())]);
    let why = "go is not installed: apt-get install golang-go".into();
    let found = Found::of(&options, versions, vec![Skipped { program: Kind::Go, why }], runs);
    Report { schema: None, manifest: Manifest::gather(), options, found }
}

fn finished(runs: usize) -> Report {
    let options = options(runs);
    let plan = plan(&options.programs, &options.arms, options.runs);
    let made = plan.into_iter().map(|(program, repeat, arm)| made_up(program, repeat, arm)).collect();
    report(options, made)
}

#[test]
fn the_moments_are_those_that_fit_into_the_idle_phase_or_its_end() {
    let at = |idle_millis| Options { idle_millis, ..options(1) }.moments();
    assert_eq!(at(120_000), [10, 30, 40, 60, 120].map(Duration::from_secs));
    assert_eq!(at(59_000), [10, 30, 40].map(Duration::from_secs));
    assert_eq!(at(1_500), [Duration::from_millis(1_500)]);
}

#[test]
fn each_run_has_a_value_for_each_column_and_memory_is_that_of_the_close_look_at_its_moment() {
    let (options, run) = (options(1), made_up(Kind::Redis, 0, Arm::Folded));
    let of = |run: &Run, name: &str| {
        figures(&options).into_iter().find(|(own, _)| own == name).expect(name).1(run)
    };
    let value = |name: &str| of(&run, name);
    let mib = |n: f64| Some(n * f64::from(1 << 20));
    assert_eq!(value("resident_bytes_loaded"), mib(100.0));
    assert_eq!((value("resident_bytes_10s"), value("pss_bytes_30s")), (mib(100.0), mib(60.0)));
    assert_eq!(value("hot_units_per_s_end"), Some(99.0));
    assert_eq!(value("pages_evicted"), Some(10_240.0));
    assert_eq!(of(&made_up(Kind::Redis, 0, Arm::Plain), "pages_evicted"), None);
    assert_eq!(figures::head(&options).len(), figures::line(&run, &options).len());
}

#[test]
fn runs_become_ratios_of_the_same_repeat_tables_plots_and_a_page() {
    let report = finished(6);
    let ratio = |figure: &str| report.beside(Kind::Python3, Arm::Folded, figure).expect(figure).ratio;
    assert!((ratio("resident_bytes_30s").median - 0.6).abs() < 1e-9 && ratio("resident_bytes_30s").differs);
    // Each pair has its own throughput, and its own ratio is the same.
    assert!((ratio("hot_units_per_s_end").median - 0.99).abs() < 1e-9);
    assert!(report.beside(Kind::Python3, Arm::Folded, "pages_evicted").is_none());
    let directory = tempfile::tempdir().unwrap();
    let output = Output::create(directory.path()).unwrap();
    report.write(&output).unwrap();
    let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(text("runs.csv").lines().count(), 1 + 2 * 6 * 2);
    assert_eq!(text("memory.csv").lines().count(), 1 + 2 * 6 * 2 * 5);
    assert!(
        text("aggregate.csv").contains("resident_bytes_30s_ratio_folded_vs_plain,6,0.6"),
        "{}",
        text("aggregate.csv")
    );
    assert!(text("summary.txt").contains("apt-get install golang-go"), "{}", text("summary.txt"));
    assert!(text("report.html").contains("redis"));
    for plot in [
        "memory_ratio",
        "memory_over_time",
        "throughput_ratio",
        "cost_ratio",
        "tier_over_time",
        "tier_reads_over_time",
    ] {
        for extension in ["svg", "png"] {
            assert!(
                directory.path().join(format!("plots/{plot}.{extension}")).exists(),
                "{plot}.{extension}"
            );
        }
    }
}

#[test]
fn a_run_in_which_nothing_was_folded_is_named_with_the_reason() {
    let mut idle = made_up(Kind::Redis, 0, Arm::Folded);
    if let Some(folded) = &mut idle.folded {
        folded.pages.evicted = 0;
        folded.reason = Some("no userfaultfd".into());
    }
    let text = report(options(1), vec![made_up(Kind::Redis, 0, Arm::Plain), idle]).to_string();
    assert!(text.contains("redis, run 1: nothing was folded: no userfaultfd"), "{text}");
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused_before_it_begins() {
    let refused = |options: Options| options.check().unwrap_err().to_string();
    assert!(refused(Options { arms: vec![Arm::Folded], ..options(1) }).contains("plain"));
    assert!(refused(Options { arms: vec![Arm::Plain, Arm::Plain], ..options(1) }).contains("each arm"));
    assert!(refused(Options { programs: vec![Kind::Go, Kind::Go], ..options(1) }).contains("each program"));
    assert!(refused(Options { bytes: 1 << 45, ..options(1) }).contains("too little memory"));
    assert!("ruby".parse::<Kind>().unwrap_err().contains("python3"));
}
