//! What a run of a program found.

use super::kind::Kind;
use super::subject::Hot;
use super::Arm;
use serde::{Deserialize, Serialize};

/// What one run found.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The program.
    pub program: Kind,
    /// Number of the repeat, from 0.
    pub repeat: usize,
    /// The arm.
    pub arm: Arm,
    /// Items of the heap; all of them were read back and were right.
    pub items: u64,
    /// From the program's start until its heap was built, s.
    pub load_s: f64,
    /// Memory once the heap was built, and from then on.
    pub moments: Vec<Moment>,
    /// What stays in use, in the first seconds of the idle phase.
    pub hot_begin: Hot,
    /// The same in the last seconds.
    pub hot_end: Hot,
    /// Going through its whole heap by itself, s; `None` where it was not asked to, or has nothing of the kind.
    pub collect_s: Option<f64>,
    /// Reading everything back, s.
    pub verify_s: f64,
    /// From being told to end until the process that was started is gone, s.
    pub exit_s: f64,
    /// CPU time of all its processes, in the program and in the kernel, s.
    pub cpu_s: f64,
    /// What `memfold run --summary` says; `None` in the other arms.
    pub folded: Option<Folded>,
    /// What became of attaching; `None` in the other arms.
    pub attached: Option<Attached>,
}

/// Memory of all processes of a program at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Time since the heap was built, s.
    pub at_s: f64,
    /// Resident memory (`VmRSS`), bytes; what processes share is in it once for each.
    pub resident_bytes: u64,
    /// Of it what is anonymous (`RssAnon`), bytes.
    pub anonymous_bytes: u64,
    /// Proportional share (`Pss`), bytes; taken at the moments of [`super::Options::moments`] only, as it takes a walk of the page tables.
    pub pss_bytes: Option<u64>,
    /// How many processes.
    pub processes: usize,
    /// What its pagers say of the memory that is folded, in the folded arm with a tier.
    pub below: Option<Below>,
}

/// Folded memory of all processes of a program at one moment, as `memfold stat` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Below {
    /// What is compressed in memory takes there, bytes.
    pub stored_bytes: u64,
    /// What lies below memory, as it was, bytes.
    pub tier_bytes: u64,
    /// What that takes in the tier, bytes.
    pub tier_file_bytes: u64,
    /// Clusters read from there since the program began.
    pub tier_reads: u64,
}

/// What the summary of `memfold run` says of the pager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Folded {
    /// `embedded`, `idle` or `off`.
    pub mode: String,
    /// Why it is off, where it is.
    pub reason: Option<String>,
    /// Pages.
    pub pages: Pages,
    /// Waits for the pager, as a share of the run, per cent.
    pub stall_pct: f64,
    /// Most that was saved at a time, bytes.
    pub saved_bytes_peak: u64,
}

/// What became of attaching to the processes of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Attached {
    /// Processes that were attached to.
    pub processes: usize,
    /// The longest that a thread of one was stopped for, ns.
    pub stopped_ns_longest: u64,
}

/// Pages in such a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Compressed and given back to the kernel.
    pub evicted: u64,
    /// Brought back from the store.
    pub restored: u64,
    /// Touched while they were set aside.
    pub second_chance: u64,
    /// Lost.
    pub lost: u64,
}

impl Run {
    /// The lines of `memory.csv`.
    pub(super) fn flat_moments(&self) -> impl Iterator<Item = Flat> + '_ {
        let (program, repeat, arm) = (self.program, self.repeat, self.arm);
        self.moments.iter().map(
            move |&Moment { at_s, resident_bytes, anonymous_bytes, pss_bytes, processes, below }| Flat {
                program,
                repeat,
                arm,
                at_s,
                resident_bytes,
                anonymous_bytes,
                pss_bytes,
                processes,
                stored_bytes: below.map(|below| below.stored_bytes),
                tier_bytes: below.map(|below| below.tier_bytes),
                tier_file_bytes: below.map(|below| below.tier_file_bytes),
                tier_reads: below.map(|below| below.tier_reads),
            },
        )
    }
}

/// A moment of a run.
#[derive(Debug, Serialize)]
pub(super) struct Flat {
    program: Kind,
    repeat: usize,
    arm: Arm,
    at_s: f64,
    resident_bytes: u64,
    anonymous_bytes: u64,
    pss_bytes: Option<u64>,
    processes: usize,
    stored_bytes: Option<u64>,
    tier_bytes: Option<u64>,
    tier_file_bytes: Option<u64>,
    tier_reads: Option<u64>,
}
