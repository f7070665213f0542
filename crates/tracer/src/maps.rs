//! Which memory of a program is recorded.

use std::ops::Range;

/// The ranges of private anonymous memory that may be read and written, by a text of `/proc/PID/maps`, without those
/// bytes of `except` that the kernel itself writes.
pub(crate) fn recorded(maps: &str, except: Range<u64>) -> Vec<Range<u64>> {
    maps.lines().filter_map(range).flat_map(|range| without(range, &except)).collect()
}

fn range(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let inode = words.nth(2)?;
    let name = words.next().unwrap_or("");
    if rights != "rw-p"
        || inode != "0"
        || !(name.is_empty() || name == "[heap]" || name.starts_with("[anon:"))
    {
        return None;
    }
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

fn without(range: Range<u64>, except: &Range<u64>) -> Vec<Range<u64>> {
    let parts = [range.start..range.end.min(except.start), range.start.max(except.end)..range.end];
    parts.into_iter().filter(|part| part.start < part.end).collect()
}

#[cfg(test)]
mod tests {
    use super::recorded;

    #[test]
    fn only_private_anonymous_memory_is_recorded_and_not_what_the_kernel_writes() {
        let maps = "\
00400000-00401000 r-xp 00000000 08:01 77 /bin/cat
00600000-00602000 rw-p 00001000 08:01 77 /bin/cat
01000000-01005000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000004000 rw-p 00000000 00:00 0
7f0000010000-7f0000011000 ---p 00000000 00:00 0
7f0000020000-7f0000021000 rw-s 00000000 00:01 9 /dev/zero
7ffff0000000-7ffff0021000 rw-p 00000000 00:00 0 [stack]
";
        let ranges = recorded(maps, 0x7f00_0000_1000..0x7f00_0000_2000);
        let expected =
            [0x100_0000..0x100_5000, 0x7f00_0000_0000..0x7f00_0000_1000, 0x7f00_0000_2000..0x7f00_0000_4000];
        assert_eq!(ranges, expected);
    }
}
