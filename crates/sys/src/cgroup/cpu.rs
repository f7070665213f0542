//! The tightest quota of CPU time: `cpu.max` in version 2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` in version 1
//! (Documentation/scheduler/sched-bwc.rst).

use super::{tightest, Path, Version};
use crate::Result;

/// One CPU.
const WHOLE: u64 = 1_000_000;

/// How much CPU time the calling process may have with all that is in its groups, in millionths of one CPU. `ENODATA` where it is not limited,
/// `ENOENT` where no controller of CPU time is mounted here that the process is in.
pub fn cpu_quota() -> Result<u64> {
    tightest(None, b"cpu", quota_of, |_, _| {})
}

/// A group's own quota, in millionths of a CPU; `u64::MAX` where it has none, `None` if it cannot be read.
fn quota_of(version: Version, directory: &mut Path) -> Option<u64> {
    let (mut text, mut other) = ([0; 64], [0; 64]);
    let (quota, period) = match version {
        Version::Two => directory.read("cpu.max", &mut text)?.split_once(' ')?,
        Version::One => {
            (directory.read("cpu.cfs_quota_us", &mut text)?, directory.read("cpu.cfs_period_us", &mut other)?)
        }
    };
    part(quota, period)
}

/// What a quota for a period comes to, both in us; `u64::MAX` for `max` and for -1, `None` for what is neither that nor a number.
fn part(quota: &str, period: &str) -> Option<u64> {
    if matches!(quota, "max" | "-1") {
        return Some(u64::MAX);
    }
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    quota.saturating_mul(WHOLE).checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::super::{climb, tests::tree};
    use super::*;
    use crate::Errno;
    use std::fs;

    #[test]
    fn a_quota_is_read_as_either_version_writes_it() {
        assert_eq!(part("max", "100000"), Some(u64::MAX));
        assert_eq!(part("-1", "100000"), Some(u64::MAX));
        assert_eq!(part("50000", "100000"), Some(500_000));
        assert_eq!(part("250000", "100000"), Some(2_500_000));
        assert_eq!([part("1000", "0"), part("", "100000"), part("-5", "100000")], [None; 3]);
    }

    #[test]
    fn the_tightest_quota_on_the_way_up_counts() {
        let all = |point: &str, group: &str, version| {
            let mut found = std::vec::Vec::new();
            climb(b"/", point.as_bytes(), group.as_bytes(), |directory| {
                found.extend(quota_of(version, directory));
            })
            .unwrap();
            found
        };
        let (base, point) =
            tree("quota v2", &[("a/cpu.max", "150000 100000\n"), ("a/b/cpu.max", "max 100000\n")]);
        // The root has no such file.
        assert_eq!(all(&point, "/a/b", Version::Two), [u64::MAX, 1_500_000]);
        fs::remove_dir_all(base).unwrap();
        let files = [
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("a/cpu.cfs_quota_us", "20000\n"),
            ("a/cpu.cfs_period_us", "50000\n"),
        ];
        let (base, point) = tree("quota v1", &files);
        assert_eq!(all(&point, "/a", Version::One), [400_000, u64::MAX]);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn this_process_has_a_quota_or_none_and_says_which() {
        let found = cpu_quota();
        assert!(matches!(found, Ok(_) | Err(Errno::ENODATA | Errno::ENOENT)), "{found:?}");
    }
}
