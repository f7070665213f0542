//! How the command lines of experiments read values, and the examples below their help.

use clap::builder::{RangedU64ValueParser, TypedValueParser};
use memfold_pager::config::{parse_duration, parse_size, BadValue, Setting, Unit};
use memfold_pager::tier::choice::Choice;

/// Below the help of a command of `memfold bench`: examples of it, and what its exit codes mean.
#[macro_export]
macro_rules! examples {
    ($($line:literal),+ $(,)?) => {
        concat!("Examples:\n", $("  ", $line, "\n",)+ "\nExit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here.")
    };
}

/// Below the help of `memfold bench` itself.
pub const EXAMPLES: &str = "\
Examples:
  memfold bench fault --vs zram              touches of evicted pages, beside swap to zram (root)
  memfold bench fault --tier disk=/var/tmp --vs swap   the same on a disk, beside the kernel's swap there
  memfold bench fold --heaps json,python3    what it costs to fold a page, by step
  memfold bench fault --json --out runs/1    the same for programs, raw runs kept
  memfold bench alloc                        the allocator beside every other that is installed
  memfold bench overhead                     what folding costs programs that gain nothing
  memfold bench attach --rounds 1000         how long a program is stopped to attach to it (root)
  memfold bench pager --runs 6 --out runs/p  workloads with and without the pager: tables, plots, a page
  memfold bench programs --only redis,python3 real programs, plain and folded
  memfold bench sim --peer cachesim          the replacement policies' speed, and libCacheSim's beside
  memfold bench pagedaemon --policies freebsd,bonchance --out runs/d
  memfold run -- memfold bench verify        does any byte get lost?

Exit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here.";

/// A count from 1.
pub fn count(most: usize) -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..=most as u64)
}

/// A whole number in a range.
pub fn whole(range: std::ops::RangeInclusive<u64>) -> impl TypedValueParser<Value = u64> {
    RangedU64ValueParser::<u64>::new().range(range)
}

/// A size of memory to fill: from a page to half a terabyte, which no machine of ours has and none overflows at.
///
/// # Errors
/// What is needed instead.
pub fn region(text: &str) -> Result<usize, String> {
    let range = memfold_sys::PAGE_SIZE as u64..=1 << 39;
    match parse_size(text) {
        Some(bytes) if range.contains(&bytes) => Ok(bytes as usize),
        Some(_) => Err("it must lie between 4K and 512G".into()),
        None => Err("a size such as 64M or 1G is needed".into()),
    }
}

/// A time from 10 milliseconds to 30 days, in milliseconds.
///
/// # Errors
/// What is needed instead.
pub fn millis(text: &str) -> Result<u64, String> {
    const MS: u64 = 1_000_000;
    match parse_duration(text) {
        Some(ns) if (10 * MS..=30 * 86_400_000 * MS).contains(&ns) => Ok(ns / MS),
        Some(_) => Err("it must lie between 10ms and 30d".into()),
        None => Err("a time such as 500ms, 10s or 5m is needed".into()),
    }
}

/// A number from `least` to `most`.
pub fn number(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let shown = |bound: f64| if bound >= 1e6 { format!("{bound:e}") } else { bound.to_string() };
        number.ok_or_else(|| format!("a number from {least} to {} is needed", shown(most)))
    }
}

/// A share in per cent.
///
/// # Errors
/// What is needed instead.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 100.0);
    share.ok_or_else(|| "a share above 0 and up to 100 is needed".into())
}

/// A value of one of the pager's settings that are times or shares, in the setting's own unit.
///
/// # Errors
/// What is needed instead.
pub fn setting(setting: Setting, text: &str) -> Result<u64, String> {
    const DAY: u64 = 86_400_000_000_000;
    setting.parse(text).map_err(|bad| match bad {
        BadValue::Range { unit: Unit::Duration, least, most } => {
            format!("it must lie between {:.1} ms and {} days", least as f64 / 1e6, most / DAY)
        }
        BadValue::Range { least, most, .. } => {
            format!("it must lie between {} % and {} %", least as f64 / 1e4, most as f64 / 1e4)
        }
        _ if setting.unit() == Unit::Duration => "a time such as 500ms, 10s or 5m is needed".into(),
        _ => "a share in per cent such as 0.5 is needed".into(),
    })
}

/// A tier, as `memfold run --tier` takes it.
///
/// # Errors
/// What is wrong with it.
pub fn tier(text: &str) -> Result<String, String> {
    Choice::parse(text).map(|_| text.to_owned()).map_err(|wrong| wrong.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_is_answered_with_what_is_allowed() {
        let refused = |of, text| setting(of, text).unwrap_err();
        assert_eq!(refused(Setting::ColdAge, "0"), "it must lie between 10.0 ms and 365 days");
        assert_eq!(refused(Setting::MaxCpu, "0"), "it must lie between 0.001 % and 100 %");
        assert_eq!(refused(Setting::ColdAge, "soon"), "a time such as 500ms, 10s or 5m is needed");
        assert_eq!(refused(Setting::MaxCpu, "x"), "a share in per cent such as 0.5 is needed");
        assert_eq!(number(0.0, 1e9)("-1").unwrap_err(), "a number from 0 to 1e9 is needed");
        assert!(region("1").unwrap_err().contains("4K") && millis("1ms").unwrap_err().contains("10ms"));
    }
}
