//! The comparison of workloads as text, in the benchmark's own layout.

use super::Row;
use crate::fairness::{improvement, improvement_of_less};
use crate::job::Access;
use crate::outcome::Outcome;
use memfold_experiment::text::number;

const RULE: usize = 101;

/// Compares cached with direct, and shows what else was measured: the benchmark's layout, with percentiles beside the
/// mean. Times are in microseconds, bandwidth in MiB a second.
pub fn comparison(rows: &[Row]) -> String {
    let mut text = format!(
        "## WORKLOAD PERFORMANCE COMPARISON\n\n{:<20} {:<8} {:<12} {:<10} {:<10} {:<10} {:<10} {:<10}\n{}\n",
        "Workload",
        "Mode",
        "IOPS",
        "BW(MB/s)",
        "Lat(μs)",
        "p50(μs)",
        "p99(μs)",
        "p99.9(μs)",
        "-".repeat(RULE)
    );
    for (index, group) in rows.chunk_by(|a, b| a.workload == b.workload).enumerate() {
        if index > 0 {
            text += &format!("{}\n", "-".repeat(RULE));
        }
        for (place, row) in group.iter().enumerate() {
            // Long names are not cut: the columns then begin later.
            text += &line(if place == 0 { &row.workload } else { "" }, row.access.name(), &row.outcome);
        }
        let of = |access: Access| group.iter().find(|row| row.access == access).map(|row| &row.outcome);
        if let (Some(cached), Some(direct)) = (of(Access::Cached), of(Access::Direct)) {
            text += &improvement_line(cached, direct);
        }
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Requests a second, bandwidth, and the mean, median, 99th and 99.9th percentile of latency.
pub(super) fn figures(outcome: &Outcome) -> [String; 6] {
    [
        format!("{:.0}", outcome.iops),
        format!("{:.1}", outcome.mib_per_second()),
        micros(Some(outcome.mean_ns)),
        micros(outcome.p50_ns),
        micros(outcome.p99_ns),
        micros(outcome.p999_ns),
    ]
}

fn line(name: &str, mode: &str, outcome: &Outcome) -> String {
    // A mode longer than its column takes from the next one, so that all others line up.
    let rest = 21usize.saturating_sub(mode.len().max(8));
    let [iops, bandwidth, mean, p50, p99, p999] = figures(outcome);
    format!("{name:<20} {mode:<8} {iops:<rest$}{bandwidth:<10} {mean:<10} {p50:<10} {p99:<10} {p999:<10}\n")
}

fn improvement_line(cached: &Outcome, direct: &Outcome) -> String {
    let tail = |of: fn(&Outcome) -> Option<f64>| {
        of(cached).zip(of(direct)).map_or_else(
            || format!("{:<9} ", "–"),
            |(cached, direct)| format!("{:<+9.1}%", improvement_of_less(cached, direct)),
        )
    };
    format!(
        "{:<20} {:<8} {:<+12.1}% {:<+9.1}% {:<+9.1}% {} {} {}\n",
        "",
        "improve",
        improvement(cached.iops, direct.iops),
        improvement(cached.bytes_per_second, direct.bytes_per_second),
        improvement_of_less(cached.mean_ns, direct.mean_ns),
        tail(|outcome| outcome.p50_ns),
        tail(|outcome| outcome.p99_ns),
        tail(|outcome| outcome.p999_ns),
    )
}

/// Nanoseconds as microseconds with one digit; a dash where there is no value.
pub fn micros(nanos: Option<f64>) -> String {
    number(nanos.map(|ns| ns / 1e3), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &str, access: Access, iops: f64, mib: f64, mean_us: f64) -> Row {
        let outcome = Outcome {
            iops,
            bytes_per_second: mib * f64::from(1 << 20),
            mean_ns: mean_us * 1e3,
            p99_ns: Some(mean_us * 2e3),
            ..Outcome::default()
        };
        Row { workload: workload.into(), access, outcome, noted: None }
    }

    #[test]
    fn the_table_has_the_lines_of_the_benchmark_s_example() {
        let rows = [
            row("steady_reader_d1", Access::Cached, 1_781_355.0, 6958.4, 0.5),
            row("steady_reader_d1", Access::Direct, 1_615_500.0, 6310.5, 0.555),
            row("bursty_writer_d1", Access::Cached, 1199.0, 4.7, 833.9),
            row("bursty_writer_d1", Access::Direct, 12518.0, 48.9, 79.6),
        ];
        let text = comparison(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(&lines[2][..55], "Workload             Mode     IOPS         BW(MB/s)   L");
        assert_eq!(&lines[4][..57], "steady_reader_d1     cached   1781355      6958.4     0.5");
        assert_eq!(&lines[5][..57], "                     direct   1615500      6310.5     0.6");
        assert_eq!(&lines[6][..61], "                     improve  +10.3       % +10.3    % +9.9  ");
        assert!(lines[7].chars().all(|c| c == '-'));
        assert_eq!(&lines[8][..59], "bursty_writer_d1     cached   1199         4.7        833.9");
        assert_eq!(&lines[10][..65], "                     improve  -90.4       % -90.4    % -947.6   %");
        // p99 is twice the mean in both modes; p50 is missing.
        assert!(lines[10].contains("–") && lines[10].ends_with("-947.6   % –"), "{}", lines[10]);
    }

    #[test]
    fn a_mode_with_a_longer_name_keeps_the_columns() {
        let rows = [row("w", Access::Cached, 12.0, 7.0, 1.0), row("w", Access::DontCache, 12.0, 7.0, 1.0)];
        let text = comparison(&rows);
        let column = |line: &str| line.find("7.0").unwrap();
        let lines: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(column(lines[0]), column(lines[1]), "{text}");
    }

    #[test]
    fn a_workload_that_ran_in_one_mode_only_has_no_improvement() {
        assert!(!comparison(&[row("w", Access::Direct, 1.0, 1.0, 1.0)]).contains("improve"));
    }
}
