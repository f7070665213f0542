//! What folding would save of programs that run now. Nothing of them is changed: which pages they touch is learnt from the kernel's referenced
//! bits, and how far their memory shrinks from copies of some pages.
//!
//! What it is not: a promise. It knows what was cold in the time that it looked, and pages that the pager would try and see come back at once
//! count as it finds them.

pub mod memory;
mod sample;

use crate::process;
use memfold_stats::Rng;
use memory::{Kind, Memory};
use sample::Found;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the pager itself takes in a process: stacks, codecs, buffers, bytes.
const OWN: u64 = 3 << 19;
/// Bytes of tables for so many bytes of memory.
const TABLES: u64 = 512;
/// What compressed pages take beside their lengths: headers and gaps, as `memfold bench fold` finds it after a minute of churn.
const GAPS: f64 = 1.06;

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its number.
    pub pid: u32,
    /// Its program.
    pub name: String,
    /// Its user, by the effective id.
    pub uid: Option<u32>,
    /// What is resident of it, bytes.
    pub resident_bytes: u64,
    /// Of that what could be folded if it were cold, bytes.
    pub foldable_bytes: u64,
    /// Of that what was not touched while it was looked at, bytes.
    pub cold_bytes: u64,
    /// What is resident, by what it is; bytes.
    pub kinds: BTreeMap<Kind, u64>,
    /// How far what is cold shrinks.
    pub shrinking: Option<Found>,
    /// What folding would save, bytes; `None` where its pages may not be read.
    pub saves_bytes: Option<u64>,
    /// CPU time that folding it once would take, s.
    pub cpu_s: Option<f64>,
    /// What kept from looking.
    pub note: Option<String>,
}

impl Row {
    /// Looks at a process whose touches were forgotten a while ago.
    ///
    /// # Errors
    /// It has ended, or may not be looked at.
    pub fn of(pid: u32, rng: &mut Rng) -> anyhow::Result<Row> {
        let memory = Memory::of(pid)?;
        let (shrinking, note) = match sample::of(pid, &memory, rng) {
            Ok(found) => (found, None),
            Err(error) => (None, Some(reading_refused(&error))),
        };
        let cold = memory.cold_bytes();
        let saves = |found: Found| saving(cold, memory.foldable_bytes(), found);
        // Without a single cold page there is nothing to save, which is known.
        let nothing = (cold == 0 && note.is_none()).then_some(0);
        Ok(Row {
            pid,
            name: process::name(pid),
            uid: process::users(pid).get(1).copied(),
            resident_bytes: memory.sum(),
            foldable_bytes: memory.foldable_bytes(),
            cold_bytes: cold,
            saves_bytes: shrinking.map(saves).or(nothing),
            cpu_s: shrinking.map(|found| cold as f64 / memfold_sys::PAGE_SIZE as f64 * found.fold_us / 1e6),
            kinds: memory.resident,
            shrinking,
            note,
        })
    }
}

/// What folding `cold` bytes of `foldable` ones saves.
fn saving(cold: u64, foldable: u64, found: Found) -> u64 {
    let goes = cold as f64 * found.shrinks;
    let saved = goes - goes * found.into * GAPS;
    (saved as u64).saturating_sub(OWN + foldable / TABLES)
}

/// Why pages cannot be read, and what to do about that.
fn reading_refused(error: &anyhow::Error) -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => format!("its pages cannot be read: {error:#}"),
        scope => format!(
            "its pages may not be read (kernel.yama.ptrace_scope is {scope}): how far they shrink is known as root, or with that at 0"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saving_counts_what_it_costs() {
        let found = Found { pages: 100, shrinks: 0.9, into: 0.25, fold_us: 5.0 };
        let (cold, foldable) = (1000 << 20, 1200 << 20);
        let saved = saving(cold, foldable, found) >> 20;
        assert!((650..665).contains(&saved), "{saved}");
        assert_eq!(saving(1 << 20, 1 << 20, found), 0, "less than the pager itself takes");
    }
}
