//! The suite: patterns with their measures, each under a name.
//!
//! `random_mixed`, `mid_mt` and `vm_mixed` have the measures of the allocator and page arena that memfold's profiles go back
//! to; the others are patterns that the field's suites know.

use crate::arguments::count;
use crate::worker::{Loop, Pattern, Written, BLOCKS_A_SECOND};
use anyhow::{Context, Result};
use memfold_pager::config::parse_size;
use serde::Serialize;

/// A pattern with its measures and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What runs; the seed is that of the experiment.
    #[serde(flatten)]
    pub job: Loop,
    /// Steps that a thread makes in a run, so that all allocators end with the same blocks; 0 to run for a time.
    pub steps: u64,
    /// What it shows, for people.
    pub about: &'static str,
}

const fn case(
    name: &'static str,
    pattern: Pattern,
    (threads, slots): (usize, usize),
    (least_bytes, most_bytes): (usize, usize),
    about: &'static str,
) -> Case {
    let written = Written::Ends;
    Case {
        name,
        job: Loop { pattern, threads, slots, least_bytes, most_bytes, written, seed: 0 },
        steps: 0,
        about,
    }
}

const KIB: usize = 1 << 10;
const SMALL: (usize, usize) = (16, 1040);

/// Hours that `fragmentation` simulates in a run.
const HOURS: u64 = 24;

/// Steps in a run of `big`: each writes thousands of pages.
const BIG_STEPS: u64 = 500;

const BIG: Case =
    case("big", Pattern::Mixed, (1, 8), (5 << 20, 25 << 20), "blocks of 5 to 25 MiB, every page written");

/// The suite.
pub const SUITE: [Case; 18] = [
    case("random_mixed", Pattern::Mixed, (1, 400), SMALL, "small blocks, 400 slots"),
    case("random_mixed_2t", Pattern::Mixed, (2, 400), SMALL, "the same in two threads"),
    case("random_mixed_100k", Pattern::Mixed, (1, 100_000), SMALL, "small blocks, 100 000 slots"),
    case("random_mixed_100k_2t", Pattern::Mixed, (2, 100_000), SMALL, "the same in two threads"),
    case("mid", Pattern::Mixed, (1, 400), (8 * KIB, 40 * KIB), "blocks of 8 to 40 KiB"),
    case("mid_mt", Pattern::Mixed, (4, 2048), (8 * KIB, 52 * KIB), "blocks of 8 to 52 KiB, four threads"),
    case("vm_mixed", Pattern::Mixed, (1, 256), (64 * KIB, 2048 * KIB), "blocks of 64 KiB to 2 MiB"),
    Case { steps: BIG_STEPS, job: Loop { written: Written::Pages, ..BIG.job }, ..BIG },
    case(
        "larson",
        Pattern::Larson,
        (2, 1000),
        (16, 1000),
        "a server whose threads take over each other's blocks",
    ),
    case("xmalloc", Pattern::Xmalloc, (2, 120), (16, 512), "batches that are freed by another thread"),
    case(
        "producer_consumer",
        Pattern::ProducerConsumer,
        (2, 1),
        (16, 512),
        "one thread allocates, another frees",
    ),
    case("realloc", Pattern::Realloc, (1, 64), (16, 256 * KIB), "blocks that grow and shrink"),
    Case {
        // A step is an allocation or a free, and there are as many of both.
        steps: HOURS * 3600 * 2 * BLOCKS_A_SECOND,
        ..case(
            "fragmentation",
            Pattern::Fragmentation,
            (1, 1),
            (16, 8 * KIB),
            "24 simulated hours, sizes change with the hour",
        )
    },
    case(
        "false_sharing",
        Pattern::FalseSharing,
        (2, 1),
        (8, 8),
        "writes to small blocks that began side by side",
    ),
    case("thread_churn", Pattern::ThreadChurn, (2, 100), SMALL, "threads that live for 500 calls"),
    case("calloc", Pattern::Calloc, (1, 400), (16, 16 * KIB), "zeroed blocks"),
    case("aligned", Pattern::Aligned, (1, 400), (16, 4 * KIB), "blocks aligned to 16 to 4096 bytes"),
    case("string_map", Pattern::StringMap, (1, 1), (2, 2), "strings and maps, a C++ program"),
];

impl Case {
    /// About the most memory that its blocks have at a time, bytes.
    pub fn bytes(&self) -> u64 {
        let Loop { pattern, threads, slots, least_bytes, most_bytes, .. } = self.job;
        let average = (least_bytes + most_bytes) as u64 / 2;
        let (threads, slots) = (threads as u64, slots as u64);
        match pattern {
            Pattern::Mixed | Pattern::Calloc | Pattern::Aligned | Pattern::ThreadChurn | Pattern::Realloc => {
                threads * slots * average
            }
            // A table waits for each thread's own.
            Pattern::Larson => 2 * threads * slots * average,
            Pattern::Xmalloc => 5 * threads * slots * average,
            Pattern::ProducerConsumer => threads / 2 * 4096 * average,
            // 29 000 blocks are alive; see the pattern.
            Pattern::Fragmentation => threads * 29_000 * average,
            Pattern::FalseSharing => threads * average,
            Pattern::StringMap => 64 << 20,
        }
    }
}

/// Which patterns, and what is changed in them.
#[derive(Clone, Debug, Default, Serialize, clap::Args)]
pub struct Measures {
    /// Patterns to run [default: all].
    #[arg(long = "pattern", value_name = "NAME,..", value_delimiter = ',')]
    pub cases: Vec<Case>,
    /// Slots of each thread, instead of the pattern's own.
    #[arg(long, value_name = "N", value_parser = count(100_000_000))]
    #[serde(skip)]
    pub slots: Option<usize>,
    /// Threads, instead of the pattern's own.
    #[arg(long, value_name = "N", value_parser = count(256))]
    #[serde(skip)]
    pub threads: Option<usize>,
    /// Smallest block, such as 16 or 8K, instead of the pattern's own.
    #[arg(long, value_name = "BYTES", value_parser = block)]
    #[serde(skip)]
    pub least: Option<usize>,
    /// Largest block, instead of the pattern's own.
    #[arg(long, value_name = "BYTES", value_parser = block)]
    #[serde(skip)]
    pub most: Option<usize>,
    /// What is written of a block in the loops over slots: ends or pages [default: ends; in `bench arena` pages].
    #[arg(long, value_name = "WHAT")]
    #[serde(skip)]
    pub written: Option<Written>,
}

impl Measures {
    /// Has the cases as they are to run.
    ///
    /// # Errors
    /// When a changed measure makes no sense in one of them.
    pub(super) fn prepare(&mut self, usual: &[Case], written: Written) -> Result<()> {
        if self.cases.is_empty() {
            self.cases = usual.to_vec();
        }
        for case in &mut self.cases {
            let job = &mut case.job;
            // What is written whole by its own measure stays so.
            let usual = if job.written == Written::Pages { Written::Pages } else { written };
            job.written = self.written.unwrap_or(usual);
            job.slots = self.slots.unwrap_or(job.slots);
            job.threads = self.threads.unwrap_or(job.threads);
            job.least_bytes = self.least.unwrap_or(job.least_bytes);
            job.most_bytes = self.most.unwrap_or(job.most_bytes);
            case.job.check().context(case.name)?;
        }
        Ok(())
    }
}

/// A block's size: from 2 bytes to a gigabyte.
fn block(text: &str) -> Result<usize, String> {
    match parse_size(text) {
        Some(bytes) if (2..=1 << 30).contains(&bytes) => Ok(bytes as usize),
        Some(_) => Err("it must lie between 2 and 1G".into()),
        None => Err("a size such as 16, 8K or 1M is needed".into()),
    }
}

impl std::str::FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        SUITE.into_iter().find(|case| case.name == text).ok_or_else(|| {
            let known: Vec<&str> = SUITE.iter().map(|case| case.name).collect();
            format!("{text:?} is no pattern; there are {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_found_by_its_name_and_makes_sense() {
        for case in SUITE {
            assert_eq!(case.name.parse::<Case>(), Ok(case));
            case.job.check().unwrap();
            assert!(case.bytes() > 0 && case.bytes() < 1 << 30, "{case:?}");
        }
        assert!("larsen".parse::<Case>().unwrap_err().contains("larson"));
    }
}
