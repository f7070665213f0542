//! What the kernel says of a group: `memory.stat` of both versions, and pressure.

use serde::{Deserialize, Serialize};

/// Figures of `memory.stat`, those of groups inside included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStat {
    /// Page cache, bytes.
    pub file_bytes: u64,
    /// Of it, changed and not written back yet, bytes.
    pub dirty_bytes: u64,
    /// Of it, being written back, bytes.
    pub writeback_bytes: u64,
    /// Pages of files that came back soon after they were evicted, since the group was made.
    pub refaults: u64,
}

impl MemoryStat {
    /// Reads the text of `memory.stat` of either version.
    pub fn parse(text: &str) -> MemoryStat {
        // Version 1 has each figure twice; `total_` includes the groups inside.
        let value = |key: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find_map(|(name, value)| (name == key).then(|| value.trim().parse().ok()).flatten())
        };
        let either = |old: &str, new: &str| value(old).or_else(|| value(new)).unwrap_or(0);
        MemoryStat {
            file_bytes: either("total_cache", "file"),
            dirty_bytes: either("total_dirty", "file_dirty"),
            writeback_bytes: either("total_writeback", "file_writeback"),
            refaults: either("total_workingset_refault_file", "workingset_refault_file"),
        }
    }
}

/// Time in which nothing could go on for want of memory or for waiting for the disk ("full" of PSI), ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// For want of memory.
    pub memory_ns: u64,
    /// For waiting for the disk.
    pub io_ns: u64,
    /// Of the group alone, not of the whole system.
    pub of_group: bool,
}

impl Pressure {
    /// What came since `earlier`.
    pub fn since(self, earlier: Pressure) -> Pressure {
        Pressure {
            memory_ns: self.memory_ns.saturating_sub(earlier.memory_ns),
            io_ns: self.io_ns.saturating_sub(earlier.io_ns),
            ..self
        }
    }
}

/// The total of the line `full` of a pressure file (Documentation/accounting/psi.rst), which is in microseconds.
pub(super) fn full_ns(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("full "));
    let total = line.and_then(|line| line.split(' ').find_map(|field| field.strip_prefix("total=")));
    total.and_then(|total| total.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_understood() {
        let expected = MemoryStat { file_bytes: 9, dirty_bytes: 8, writeback_bytes: 7, refaults: 6 };
        let first =
            "cache 1\ndirty 1\nworkingset_refault_file 1\ntotal_cache 9\ntotal_dirty 8\ntotal_writeback 7\n\
                     total_workingset_refault_file 6\n";
        let second = "anon 5\nfile 9\nfile_dirty 8\nfile_writeback 7\nworkingset_refault_file 6\n";
        assert_eq!(MemoryStat::parse(first), expected);
        assert_eq!(MemoryStat::parse(second), expected);
        assert_eq!(MemoryStat::parse("nonsense"), MemoryStat::default());
    }

    #[test]
    fn pressure_is_the_total_of_full() {
        let text = "some avg10=0.48 avg60=0.16 avg300=0.03 total=70\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n";
        assert_eq!(full_ns(text), 12_000);
        assert_eq!(full_ns(""), 0);
        assert_eq!(full_ns("full total=18446744073709551615"), u64::MAX);
        let (a, b) = (
            Pressure { memory_ns: 5, io_ns: 9, of_group: true },
            Pressure { memory_ns: 2, ..Pressure::default() },
        );
        assert_eq!(a.since(b), Pressure { memory_ns: 3, io_ns: 9, of_group: true });
    }
}
