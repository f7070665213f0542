//! The figures as text: what the command prints and `aggregate_summary.txt` holds.

use super::results::Results;
use super::Arm;
use memfold_experiment::text::mib;
use std::fmt;

/// Writes the summary.
fn write(results: &Results, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let options = &results.record.options;
    let planned = options.plan().len();
    writeln!(
        f,
        "workloads with and without the pager  ({} runs of {:.1} s an arm, interleaved, medians; {} MiB, cold after {} ms)",
        options.runs,
        options.measures.millis as f64 / 1e3,
        options.measures.bytes >> 20,
        options.measures.cold_millis
    )?;
    if results.finished < planned {
        writeln!(f, "unfinished: {} of {planned} runs", results.finished)?;
    }
    for &workload in &options.workloads {
        let of = |arm: Arm, metric: &str| results.median(workload, arm, metric).unwrap_or(f64::NAN);
        writeln!(f, "{}", workload.name())?;
        writeln!(
            f,
            "  {:<9}{:>10.1} units/s   {:>6.1} MiB   unit p99 {:>8.1} us   {:>5.1} MiB cold",
            "baseline",
            of(Arm::Baseline, "units_per_s"),
            mib(of(Arm::Baseline, "footprint_mean_bytes")),
            of(Arm::Baseline, "unit_p99_ns") / 1e3,
            mib(of(Arm::Baseline, "cold_bytes_mean"))
        )?;
        for row in results.throughput.iter().filter(|row| row.workload == workload) {
            let own = |metric: &str| of(row.arm, metric);
            writeln!(
                f,
                "  {:<9}{:>10.1} units/s   {:>6.1} MiB   unit p99 {:>8.1} us   saved {:>5.1} MiB ({:.1} %)",
                row.arm.name(),
                own("units_per_s"),
                mib(own("footprint_mean_bytes")),
                own("unit_p99_ns") / 1e3,
                mib(own("saved_bytes_mean")),
                own("saved_pct_of_resident")
            )?;
            writeln!(f, "  {:<9}  throughput over baseline {}", "", row.ratio)?;
            if row.arm.folds() {
                write_pager(f, &own)?;
            }
        }
    }
    Ok(())
}

fn write_pager(f: &mut fmt::Formatter<'_>, own: &dyn Fn(&str) -> f64) -> fmt::Result {
    writeln!(
        f,
        "  {:<9}  folded {:.0} % of what is cold, half of it {}   CPU {:.2} % (background {:.2}, faults {:.2})   stall {:.3} %",
        "",
        own("folded_pct_of_cold"),
        match own("half_of_cold_folded_s") {
            seconds if seconds.is_nan() => "never".to_owned(),
            seconds => format!("after {seconds:.1} s"),
        },
        own("pager_daemon_cpu_pct_total"),
        own("pager_bg_cpu_pct"),
        own("pager_fault_cpu_pct"),
        own("stall_pct")
    )?;
    writeln!(
        f,
        "  {:<9}  pages compressed {:.0}, restored {:.0}, faults {:.0}   wait p99 {:.1} us   restore p99 {:.1} us",
        "",
        own("pager_compress_success"),
        own("pager_restore_success"),
        own("pager_faults_missing"),
        own("pager_fault_missing_p99_ns") / 1e3,
        own("pager_restore_wall_p99_ns") / 1e3
    )
}

impl std::fmt::Display for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write(self, f)
    }
}
