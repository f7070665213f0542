//! The kernel's account of a block device, and what `iostat -x` makes of two of them.
//!
//! Sources: Documentation/admin-guide/iostats.rst; the columns and their arithmetic are those of sysstat's iostat(1).

/// A device's line of `/proc/diskstats`, counted since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Of reads, writes and discards.
    pub directions: [Direction; 3],
    /// Flushes done.
    pub flushes: u64,
    /// Time that they took, ms.
    pub flush_ms: u64,
    /// Time with requests under way, ms.
    pub busy_ms: u64,
    /// Time of all requests under way, added up, ms.
    pub weighted_ms: u64,
}

/// Requests of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Requests done.
    pub done: u64,
    /// Requests that were merged into others.
    pub merged: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Time of the requests, added up, ms.
    pub ms: u64,
}

impl Counters {
    /// The line of `device` in the text of `/proc/diskstats`; what an older kernel does not count is 0.
    pub fn parse(text: &str, device: &str) -> Option<Counters> {
        let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(device))?;
        let fields: Vec<u64> = line.split_whitespace().skip(3).map(|f| f.parse().unwrap_or(0)).collect();
        let at = |index: usize| fields.get(index).copied().unwrap_or(0);
        let direction = |first: usize| Direction {
            done: at(first),
            merged: at(first + 1),
            sectors: at(first + 2),
            ms: at(first + 3),
        };
        Some(Counters {
            directions: [direction(0), direction(4), direction(11)],
            busy_ms: at(9),
            weighted_ms: at(10),
            flushes: at(15),
            flush_ms: at(16),
        })
    }
}

/// The head of a table of `iostat -x`.
pub const HEAD: &str = "Device            r/s     rkB/s   rrqm/s  %rrqm r_await rareq-sz     w/s     wkB/s   wrqm/s  %wrqm \
                        w_await wareq-sz     d/s     dkB/s   drqm/s  %drqm d_await dareq-sz     f/s f_await  aqu-sz  %util";

/// The line of `device` below [`HEAD`], of the `seconds` between two accounts.
pub fn line(device: &str, before: &Counters, after: &Counters, seconds: f64) -> String {
    let over = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
    let mut text = format!("{device:<13}");
    for (then, now) in before.directions.iter().zip(&after.directions) {
        let (done, merged) = (since(now.done, then.done), since(now.merged, then.merged));
        let kib = since(now.sectors, then.sectors) / 2.0;
        text += &format!(
            " {:>7.2} {:>9.2} {:>8.2} {:>6.2} {:>7.2} {:>8.2}",
            over(done, seconds),
            over(kib, seconds),
            over(merged, seconds),
            over(merged * 100.0, merged + done),
            over(since(now.ms, then.ms), done),
            over(kib, done)
        );
    }
    let flushes = since(after.flushes, before.flushes);
    text + &format!(
        " {:>7.2} {:>7.2} {:>7.2} {:>6.2}",
        over(flushes, seconds),
        over(since(after.flush_ms, before.flush_ms), flushes),
        over(since(after.weighted_ms, before.weighted_ms), seconds * 1e3),
        over(since(after.busy_ms, before.busy_ms), seconds * 10.0).min(100.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = " 254       0 vda 1000 10 8000 500 2000 20 16000 900 0 700 1400 0 0 0 0 5 50\n";
    const AFTER: &str = " 254       0 vda 1200 60 11200 900 2100 20 17600 1100 0 1700 2000 0 0 0 0 7 58\n";

    #[test]
    fn the_columns_are_what_iostat_makes_of_the_same_counters() {
        let of = |text| Counters::parse(text, "vda").unwrap();
        let line = line("vda", &of(BEFORE), &of(AFTER), 2.0);
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields.len(), HEAD.split_whitespace().count());
        // 200 reads of 3200 sectors and 400 ms in 2 s, 50 more merged; 100 writes of 1600 sectors and 200 ms.
        assert_eq!(fields[1..7], ["100.00", "800.00", "25.00", "20.00", "2.00", "8.00"]);
        assert_eq!(fields[7..13], ["50.00", "400.00", "0.00", "0.00", "2.00", "8.00"]);
        assert_eq!(fields[13..19], ["0.00"; 6]);
        // 2 flushes of 8 ms; 600 ms of requests and 1000 ms with some, in 2 s.
        assert_eq!(fields[19..], ["1.00", "4.00", "0.30", "50.00"]);
    }

    #[test]
    fn an_old_kernel_s_line_and_a_missing_device_are_no_trouble() {
        let old = Counters::parse("8 1 sda1 1 2 3 4 5 6 7 8 9 10 11", "sda1").unwrap();
        assert_eq!((old.directions[1].done, old.busy_ms, old.flushes), (5, 10, 0));
        assert_eq!(Counters::parse(AFTER, "vd"), None);
        assert!(!line("x", &old, &old, 0.0).contains("NaN"));
    }
}
