//! The tightest quota of CPU time: `cpu.max` in version 2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` in version 1
//! (Documentation/scheduler/sched-bwc.rst).

use super::{for_each_group, Path, Version};
use crate::file;
use crate::{Errno, Result};
use core::ffi::CStr;

/// One CPU.
const WHOLE: u64 = 1_000_000;

/// How much CPU time the calling process may have with all that is in its groups, in millionths of one CPU. `ENODATA` where it is not limited,
/// `ENOENT` where no controller of CPU time is mounted here that the process is in.
pub fn cpu_quota() -> Result<u64> {
    let (mut found, mut least) = (false, None);
    for_each_group(None, b"cpu", |version, directory| {
        if let Some(quota) = quota_of(version, directory) {
            found = true;
            least = least.into_iter().chain(quota).min();
        }
    })?;
    match least {
        Some(quota) => Ok(quota),
        None if found => Err(Errno::ENODATA),
        None => Err(Errno::ENOENT),
    }
}

/// A group's own quota, in millionths of a CPU; none in it where it has none, `None` if it cannot be read.
fn quota_of(version: Version, directory: &mut Path) -> Option<Option<u64>> {
    let mut text = [0; 64];
    match version {
        Version::Two => {
            let text = directory.with("cpu.max", |path| read(path, &mut text))?;
            let (quota, period) = text.split_once(' ')?;
            part(quota, period)
        }
        Version::One => {
            let mut other = [0; 64];
            let quota = directory.with("cpu.cfs_quota_us", |path| read(path, &mut text))?;
            let period = directory.with("cpu.cfs_period_us", |path| read(path, &mut other))?;
            part(quota, period)
        }
    }
}

/// What a quota for a period comes to, both in us; none in it for `max` and for -1, `None` for what is neither that nor a number.
fn part(quota: &str, period: &str) -> Option<Option<u64>> {
    if matches!(quota, "max" | "-1") {
        return Some(None);
    }
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    Some(Some(quota.saturating_mul(WHOLE).checked_div(period)?))
}

fn read<'t>(path: &CStr, text: &'t mut [u8]) -> Option<&'t str> {
    let file = file::open(path, libc::O_RDONLY, 0).ok()?;
    let len = file::pread(file.raw(), text, 0).ok()?;
    Some(core::str::from_utf8(&text[..len]).ok()?.trim())
}

#[cfg(test)]
mod tests {
    use super::super::{climb, tests::tree};
    use super::*;
    use std::fs;

    #[test]
    fn a_quota_is_read_as_either_version_writes_it() {
        assert_eq!(part("max", "100000"), Some(None));
        assert_eq!(part("-1", "100000"), Some(None));
        assert_eq!(part("50000", "100000"), Some(Some(500_000)));
        assert_eq!(part("250000", "100000"), Some(Some(2_500_000)));
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
        assert_eq!(all(&point, "/a/b", Version::Two), [None, Some(1_500_000)]);
        fs::remove_dir_all(base).unwrap();
        let files = [
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("a/cpu.cfs_quota_us", "20000\n"),
            ("a/cpu.cfs_period_us", "50000\n"),
        ];
        let (base, point) = tree("quota v1", &files);
        assert_eq!(all(&point, "/a", Version::One), [Some(400_000), None]);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn this_process_has_a_quota_or_none_and_says_which() {
        let found = cpu_quota();
        assert!(matches!(found, Ok(_) | Err(Errno::ENODATA | Errno::ENOENT)), "{found:?}");
    }
}
