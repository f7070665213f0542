//! What the pagers of a program's processes say of its tier, while it runs.
//!
//! `memfold stat` is asked: it finds the control pages also of programs that write over their environment (redis, postgres) or run as another
//! user. What it costs is not among the program's own processes.

use super::measured::Below;
use crate::launch::plain;
use crate::worker::Program;
use serde::Deserialize;
use std::process::{Command, Stdio};

/// The part of a row of `memfold stat --json` that is wanted.
#[derive(Deserialize)]
struct Row {
    pid: u32,
    stored_bytes: u64,
    tier_bytes: u64,
    tier_file_bytes: u64,
    tier_read_ns: Reads,
}

#[derive(Deserialize)]
struct Reads {
    count: u64,
}

/// The sum over these processes; `None` where no pager answers.
pub(super) fn of(memfold: &Program, pids: &[u32]) -> Option<Below> {
    let mut command = Command::new(&memfold.path);
    plain(&mut command);
    let output = command.args(["stat", "--json"]).stderr(Stdio::null()).output().ok()?;
    sum(&output.stdout, pids)
}

fn sum(json: &[u8], pids: &[u32]) -> Option<Below> {
    let rows: Vec<Row> = serde_json::from_slice(json).ok()?;
    let ours = rows.into_iter().filter(|row| pids.contains(&row.pid));
    ours.fold(None, |sum: Option<Below>, row| {
        let sum = sum.unwrap_or_default();
        Some(Below {
            stored_bytes: sum.stored_bytes + row.stored_bytes,
            tier_bytes: sum.tier_bytes + row.tier_bytes,
            tier_file_bytes: sum.tier_file_bytes + row.tier_file_bytes,
            tier_reads: sum.tier_reads + row.tier_read_ns.count,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_processes_are_added_up_and_others_are_not() {
        let row = |pid, bytes| {
            format!(
                r#"{{"pid":{pid},"stored_bytes":{bytes},"tier_bytes":2,"tier_file_bytes":1,"tier_read_ns":{{"count":5,"p50":1}}}}"#
            )
        };
        let json = format!("[{},{},{}]", row(7, 10), row(8, 20), row(9, 40));
        let both = sum(json.as_bytes(), &[7, 8, 1]).unwrap();
        assert_eq!((both.stored_bytes, both.tier_bytes, both.tier_reads), (30, 4, 10));
        assert_eq!(sum(json.as_bytes(), &[1]), None);
        assert_eq!(sum(b"", &[7]), None);
    }
}
