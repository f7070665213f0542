//! `memfold stat --alloc`: what the allocators of running programs hold.

use crate::pages::Found;
use crate::process;
use crate::text::{self, bytes, count};
use memfold_inspect::{Alloc, AllocClass};
use serde::Serialize;

/// What JSON shows of a process.
#[derive(Serialize)]
pub struct Row {
    pid: u32,
    name: String,
    /// Resident bytes and minor faults of the whole process; `None` where the kernel does not say.
    resident_bytes: Option<u64>,
    minor_faults: Option<u64>,
    #[serde(flatten)]
    alloc: Alloc,
}

/// The row of a process.
pub fn row(found: &Found) -> Row {
    let pid = found.pid;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; the third field follows it (proc_pid_stat(5)).
    let rest: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| rest.get(number - 3)?.parse::<u64>().ok();
    Row {
        pid,
        name: process::name(pid),
        resident_bytes: field(24).map(|pages| pages * memfold_sys::PAGE_SIZE as u64),
        minor_faults: field(10),
        alloc: found.page.alloc.clone(),
    }
}

/// One line for each process.
pub fn all(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no folded processes; `memfold run -- COMMAND` starts one\n".into();
    }
    let header =
        ["NAME", "PID", "LIVE", "MAPPED", "FREE RESIDENT", "RECORDS", "KERNEL CALLS", "RESIDENT", "FAULTS"];
    let mut table = vec![header.map(String::from).to_vec()];
    table.extend(rows.iter().map(|row| {
        vec![
            row.name.clone(),
            row.pid.to_string(),
            bytes(row.alloc.live_bytes),
            bytes(row.alloc.mapped_bytes),
            bytes(row.alloc.cached_bytes),
            bytes(row.alloc.record_bytes),
            count(row.alloc.kernel_calls()),
            row.resident_bytes.map_or("?".into(), bytes),
            row.minor_faults.map_or("?".into(), count),
        ]
    }));
    text::table(&table)
}

/// All of one process, with its size classes.
pub fn one(row: &Row) -> String {
    let alloc = &row.alloc;
    let calls = [
        ("mmap", alloc.mmap_calls),
        ("munmap", alloc.munmap_calls),
        ("madvise", alloc.madvise_calls),
        ("mprotect", alloc.mprotect_calls),
        ("mremap", alloc.mremap_calls),
    ];
    let calls = calls.map(|(name, calls)| format!("{name} {}", count(calls))).join(", ");
    let lines = [
        ("name", row.name.clone()),
        ("live", bytes(alloc.live_bytes)),
        ("mapped", bytes(alloc.mapped_bytes)),
        ("free and resident", bytes(alloc.cached_bytes)),
        ("records", bytes(alloc.record_bytes)),
        ("blocks of whole pages", format!("{}, {}", count(alloc.large_blocks), bytes(alloc.large_bytes))),
        ("kernel calls", calls),
        ("resident, process", row.resident_bytes.map_or("?".into(), bytes)),
        ("minor faults, process", row.minor_faults.map_or("?".into(), count)),
    ];
    let table: Vec<_> = lines.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let mut classes = vec![["BLOCK", "USED", "IN SPANS OF", "FILLED"].map(String::from).to_vec()];
    classes.extend(alloc.classes.iter().map(|class| {
        vec![
            class.block_bytes.to_string(),
            count(class.used_blocks),
            bytes(class.span_bytes),
            format!("{:.0} %", filled(class)),
        ]
    }));
    format!("{}\n{}", text::table(&table), text::table(&classes))
}

/// The share of a class's spans that is used, per cent.
fn filled(class: &AllocClass) -> f64 {
    100.0 * class.used_blocks as f64 * class.block_bytes as f64 / class.span_bytes as f64
}
