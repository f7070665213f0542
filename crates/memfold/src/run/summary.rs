//! What `memfold run` says at the end: the JSON of `--summary` and a line for people, or three where anything was folded, and a
//! fourth where it was counted why the rest was not.

use super::supervise::End;
use super::tally::{Process, Total};
use crate::reasons;
use crate::text::{bytes, count, nanos, percent, ratio};
use memfold_inspect::{Costs, Inventory, Pages, Percentiles, Source};
use memfold_pager::control::Mode;
use memfold_pager::source::Kind;
use serde::Serialize;
use std::ffi::OsString;
use std::time::Duration;

/// The layout of the JSON; it changes when a key changes its meaning or goes.
const SCHEMA: &str = "memfold-summary/1";

/// The summary of a run. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    schema: &'static str,
    command: Vec<String>,
    exit_code: u8,
    /// The signal that ended the program.
    signal: Option<i32>,
    wall_ns: u64,
    /// `embedded`, `idle` or `off`.
    mode: &'static str,
    /// Why the mode is `off`.
    reason: Option<String>,
    /// What told which memory was cold; none where nothing was folded.
    source: Option<Source>,
    managed_bytes_peak: u64,
    evicted_bytes_peak: u64,
    stored_bytes_peak: u64,
    overhead_bytes_peak: u64,
    store_bytes_peak: u64,
    table_bytes_peak: u64,
    saved_bytes_peak: u64,
    saved_bytes_mean: u64,
    #[serde(serialize_with = "memfold_inspect::fields")]
    pages: Pages,
    fault_ns: Percentiles,
    restore_ns: Percentiles,
    tier: Tier,
    stall_ns_total: u64,
    /// The stall as a share of the wall time, in per cent; threads that wait at the same time add up.
    stall_pct: f64,
    /// The highest share within a sliding window, in per cent.
    stall_pct_peak: f64,
    /// Waits for room below `--resident-limit`, which are no part of the stall.
    limit: Limit,
    cpu_ns: Cpu,
    extents_registered: u64,
    budget_holds: u64,
    /// Why what was resident was not folded, when that was last counted, of the process with the most.
    why: Option<Resident>,
    /// How many programs were counted; the largest are listed below.
    processes_total: u64,
    /// How many of its processes went on after the program that was started had ended.
    processes_left: usize,
    processes: Vec<Process>,
}

/// What a run did that its control pages do not tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beyond {
    /// Programs that the program started ran plainly, as was wished.
    pub not_followed: bool,
    /// Processes that still run, and have the library.
    pub left: usize,
}

/// What keeping a resident limit took.
#[derive(Clone, Copy, Debug, Serialize)]
struct Limit {
    /// How often a thread had to wait for room.
    waits: u64,
    /// For how long, ns; threads that wait at the same time add up.
    wait_ns: u64,
    /// How often threads were let through above the limit, because nothing more could be evicted.
    misses: u64,
}

/// What the tier below memory held and did.
#[derive(Clone, Copy, Debug, Serialize)]
struct Tier {
    /// Highest sum of what programs had there.
    bytes_peak: u64,
    /// Highest sum of what that took of files.
    file_bytes_peak: u64,
    /// Clusters of up to 16 pages that were written.
    writes: u64,
    /// Writes that failed, and reads that did at the first try.
    errors: u64,
    /// Waits for an engine on the network that was away, and how long they took.
    waits: u64,
    /// See there.
    wait_ns: u64,
    /// Bytes read for each that something waited for.
    read_amplification: Option<f64>,
    /// Reading of a cluster, ns.
    read_ns: Percentiles,
}

/// The last count of a process.
#[derive(Clone, Debug, Serialize)]
struct Resident {
    pid: u32,
    #[serde(flatten)]
    inventory: Inventory,
}

/// CPU time of the agent's threads, ns.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cpu {
    background: u64,
    fault: u64,
    tier: u64,
}

impl Summary {
    /// Puts a summary together. `obstacle` says why nothing was preloaded, where nothing was; `beyond` what else is not in it.
    pub fn new(
        command: &[OsString],
        end: End,
        wall: Duration,
        total: Total,
        obstacle: Option<String>,
        beyond: Beyond,
    ) -> Summary {
        let Costs { stall_ns, stall_ppm_peak, cpu_background_ns, cpu_fault_ns, cpu_tier_ns, .. } =
            total.costs;
        let wall_ns = wall.as_nanos() as u64;
        Summary {
            schema: SCHEMA,
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            exit_code: end.code(),
            signal: match end {
                End::Killed(signal) => Some(signal),
                End::Exited(_) => None,
            },
            wall_ns,
            mode: total.mode.unwrap_or(Mode::Off).name(),
            reason: if total.mode.is_some() { None } else { Some(reason(&total, obstacle, beyond)) },
            source: total.source.clone().map(|(_, source)| source),
            managed_bytes_peak: total.peaks.managed_bytes_peak,
            evicted_bytes_peak: total.peaks.evicted_bytes_peak,
            stored_bytes_peak: total.peaks.stored_bytes_peak,
            overhead_bytes_peak: total.peaks.overhead_bytes,
            store_bytes_peak: total.peaks.store_bytes,
            table_bytes_peak: total.peaks.table_bytes,
            saved_bytes_peak: total.peaks.saved_bytes_peak,
            saved_bytes_mean: total.saved_byte_millis.checked_div(wall.as_millis() as u64).unwrap_or(0),
            pages: total.pages,
            fault_ns: total.fault.percentiles(),
            restore_ns: total.restore.percentiles(),
            tier: Tier {
                bytes_peak: total.peaks.tier_bytes_peak,
                file_bytes_peak: total.peaks.tier_file_bytes,
                writes: total.costs.tier_writes,
                errors: total.costs.tier_errors,
                waits: total.costs.tier_waits,
                wait_ns: total.costs.tier_wait_ns,
                read_amplification: ratio(total.costs.tier_read_bytes, total.costs.tier_asked_bytes),
                read_ns: total.tier_read.percentiles(),
            },
            stall_ns_total: stall_ns,
            stall_pct: percent(stall_ns, wall_ns),
            stall_pct_peak: stall_ppm_peak as f64 / 10_000.0,
            limit: Limit {
                waits: total.costs.limit_waits,
                wait_ns: total.costs.limit_wait_ns,
                misses: total.costs.limit_misses,
            },
            cpu_ns: Cpu { background: cpu_background_ns, fault: cpu_fault_ns, tier: cpu_tier_ns },
            extents_registered: total.costs.extents_registered,
            budget_holds: total.costs.budget_holds,
            why: total.why.clone().map(|(pid, inventory)| Resident { pid, inventory }),
            processes_total: total.processes,
            processes_left: beyond.left,
            processes: total.largest(),
        }
    }

    /// As JSON, with a newline at the end.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// As three lines, or as one where nothing was folded.
    pub fn lines(&self) -> String {
        let name = self.command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
        let end = match self.signal {
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("exit code {}", self.exit_code),
        };
        let first = format!("{name} ran {}, {end}", nanos(self.wall_ns));
        match &self.reason {
            Some(reason) => format!("memfold: {first}; not folded: {reason}\n"),
            None if self.pages.evicted == 0 && self.pages.lost == 0 => {
                format!("memfold: {first}; nothing of {} was cold\n", bytes(self.managed_bytes_peak))
            }
            None => {
                let why =
                    self.why.as_ref().map(|why| format!("memfold: {}\n", reasons::line(&why.inventory)));
                format!(
                    "memfold: {first}; mode {}{}\nmemfold: {}\nmemfold: {}\n{}",
                    self.mode,
                    self.source_words(),
                    self.saved_line(),
                    self.cost_line(),
                    why.unwrap_or_default()
                )
            }
        }
    }

    /// The source, where one was chosen.
    fn source_words(&self) -> String {
        match &self.source {
            Some(source) if source.asked != Kind::Auto => format!("; source {}", source.words()),
            _ => String::new(),
        }
    }

    fn saved_line(&self) -> String {
        let lost = match self.pages.lost {
            0 => String::new(),
            lost => format!("; {} PAGES LOST", count(lost)),
        };
        let below = match self.tier.bytes_peak {
            0 => String::new(),
            below => format!(
                "; {} in the tier, which takes {} there",
                bytes(below),
                bytes(self.tier.file_bytes_peak)
            ),
        };
        format!(
            "saved {} at peak, {} on average, of {} managed ({} folded into {}, with {} of gaps, tables and buffers{below}){lost}",
            bytes(self.saved_bytes_peak),
            bytes(self.saved_bytes_mean),
            bytes(self.managed_bytes_peak),
            bytes(self.evicted_bytes_peak),
            bytes(self.stored_bytes_peak),
            bytes(self.overhead_bytes_peak.saturating_sub(self.stored_bytes_peak)),
        )
    }

    fn cost_line(&self) -> String {
        let room = match self.limit.waits {
            0 => String::new(),
            _ => format!("; waited {} for room", nanos(self.limit.wait_ns)),
        };
        let foreseen = self.pages.predicted + self.pages.periods_predicted;
        let hit = self.pages.predicted_hit + self.pages.periods_hit;
        let ahead = match foreseen {
            0 => String::new(),
            _ => format!(
                ", {} foreseen of which about {} were wanted",
                count(foreseen),
                count(hit.min(foreseen))
            ),
        };
        format!(
            "{} pages folded, {} restored{ahead}, {} second chances; faults p50 {}, p99 {}; stalled {:.3} %{room}; CPU {}",
            count(self.pages.evicted),
            count(self.pages.restored),
            count(self.pages.second_chance),
            nanos(self.fault_ns.p50),
            nanos(self.fault_ns.p99),
            self.stall_pct,
            nanos([self.cpu_ns.background, self.cpu_ns.fault, self.cpu_ns.tier].into_iter().fold(0, u64::saturating_add)),
        )
    }
}

/// Why nothing was folded.
fn reason(total: &Total, obstacle: Option<String>, beyond: Beyond) -> String {
    match (obstacle, &total.reason) {
        (Some(obstacle), _) => obstacle,
        (None, Some(reason)) if !reason.is_empty() => reason.clone(),
        _ if beyond.left > 0 => format!(
            "it ended before there was anything to fold; {} of its processes went on (`memfold stat` shows those that fold)",
            beyond.left
        ),
        _ if total.processes > 0 && beyond.not_followed => {
            "it never had as much memory to manage as --start-at asks for, and programs that it started ran plainly \
             (--no-follow)"
                .into()
        }
        _ if total.processes > 0 => "it never had as much memory to manage as --start-at asks for".into(),
        _ => "the program never loaded the library".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(total: Total, obstacle: Option<&str>) -> Summary {
        let command = ["/usr/bin/redis-server".into()];
        Summary::new(
            &command,
            End::Exited(3),
            Duration::from_secs(2),
            total,
            obstacle.map(Into::into),
            Beyond::default(),
        )
    }

    #[test]
    fn the_json_has_every_key_that_users_were_promised() {
        let text = summary(Total::default(), None).json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let top = "schema command exit_code wall_ns mode reason source managed_bytes_peak evicted_bytes_peak \
                   stored_bytes_peak overhead_bytes_peak store_bytes_peak table_bytes_peak saved_bytes_peak saved_bytes_mean stall_ns_total stall_pct";
        for key in top.split_whitespace() {
            assert!(value.get(key).is_some(), "{key} is missing");
        }
        let nested = [
            ("pages", "evicted restored second_chance same_value incompressible lost"),
            ("fault_ns", "count p50 p95 p99 p999 max"),
            ("restore_ns", "count p50 p95 p99 p999 max"),
            ("limit", "waits wait_ns misses"),
            ("cpu_ns", "background fault"),
        ];
        for (outer, inner) in nested {
            for key in inner.split_whitespace() {
                assert!(value[outer].get(key).is_some(), "{outer}.{key} is missing");
            }
        }
    }

    #[test]
    fn a_run_without_folding_says_why() {
        assert_eq!(summary(Total::default(), Some("it is static")).reason.unwrap(), "it is static");
        let off = Total { processes: 1, reason: Some("no userfaultfd".into()), ..Total::default() };
        assert_eq!(summary(off, None).reason.unwrap(), "no userfaultfd");
        let idle = Total { processes: 1, ..Total::default() };
        assert!(summary(idle.clone(), None).reason.unwrap().contains("--start-at"));
        let alone = Beyond { not_followed: true, left: 0 };
        assert!(reason(&idle, None, alone).contains("--no-follow"));
        let gone = Beyond { not_followed: false, left: 2 };
        assert!(reason(&idle, None, gone).contains("2 of its processes went on"));
    }

    #[test]
    fn the_mean_is_the_integral_over_the_wall_time() {
        let total = Total { mode: Some(Mode::Embedded), saved_byte_millis: 4_000_000, ..Total::default() };
        let summary = summary(total, None);
        assert_eq!(summary.saved_bytes_mean, 2_000);
        assert_eq!(summary.reason, None);
        assert_eq!(
            summary.lines(),
            "memfold: redis-server ran 2.00 s, exit code 3; nothing of 0 B was cold\n"
        );
    }

    #[test]
    fn what_was_folded_takes_three_lines_and_what_was_not_takes_one() {
        let total = Total { mode: Some(Mode::Embedded), ..Total::default() };
        let mut folded = summary(total, None);
        folded.pages.evicted = 5;
        assert_eq!(folded.lines().lines().count(), 3);
        let plain = summary(Total::default(), Some("it is static"));
        assert_eq!(
            plain.lines(),
            "memfold: redis-server ran 2.00 s, exit code 3; not folded: it is static\n"
        );
    }
}
