//! What `/proc` says about a process.

use std::fs;
use std::time::Duration;

/// The fields of `/proc/PID/stat` that memfold needs (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// One letter: `R`unning, `S`leeping, `T` stopped, `Z`ombie and others.
    pub state: char,
    /// Start, since the machine booted.
    pub started: Duration,
}

/// Reads `/proc/PID/stat`; `None` if there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything: what follows the last one is fields 3 and on.
    let fields: Vec<&str> = line[line.rfind(')')? + 1..].split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    // Field 22 counts ticks of 1/100 s: USER_HZ is 100 on every Linux that memfold runs on.
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    Some(Stat { state, started: Duration::from_millis(ticks * 10) })
}

/// Whether the process runs: it exists and is no zombie.
pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|s| !matches!(s.state, 'Z' | 'X'))
}

/// Whether the process that runs as `pid` is the one that made a control page at `page_started_ns`
/// (`CLOCK_MONOTONIC`), and not a later one with the same number.
pub fn made_page(pid: u32, page_started_ns: u64) -> bool {
    // A process starts before it makes its page. Its start is known to 10 ms, on a clock that also counts
    // the time that the machine slept; that much later is no other process.
    let slack = Duration::from_millis(50) + slept();
    is_running(pid)
        && stat(pid).is_some_and(|s| s.started <= Duration::from_nanos(page_started_ns).saturating_add(slack))
}

/// How long the machine has slept since it booted: `CLOCK_BOOTTIME` less `CLOCK_MONOTONIC`.
fn slept() -> Duration {
    let read = |clock| nix::time::clock_gettime(clock).map(Duration::from).unwrap_or_default();
    let monotonic = read(nix::time::ClockId::CLOCK_MONOTONIC);
    read(nix::time::ClockId::CLOCK_BOOTTIME).saturating_sub(monotonic)
}

/// Whether the process is of this user, by its effective user id.
pub fn is_own(pid: u32) -> bool {
    let ids = field(&format!("/proc/{pid}/status"), "Uid").unwrap_or_default();
    ids.split_whitespace().nth(1) == Some(nix::unistd::geteuid().to_string().as_str())
}

/// The name of the program, as `ps` shows it; empty if there is no such process.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The value of a line `KEY: value` of a file such as `/proc/PID/status`.
pub fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|l| Some(l.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}

/// A field of a `/proc` file that is given in kB, in bytes.
pub fn field_bytes(path: &str, key: &str) -> Option<u64> {
    field(path, key)?.strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_a_page_from_before_its_start_is_not_its_own() {
        let pid = std::process::id();
        assert!(is_running(pid));
        assert!(made_page(pid, sys::time::now().0));
        assert!(!made_page(pid, 0) || stat(pid).unwrap().started < Duration::from_secs(1));
        assert!(!name(pid).is_empty());
    }

    #[test]
    fn fields_in_kilobytes_become_bytes() {
        let rss = field_bytes("/proc/self/status", "VmRSS").unwrap();
        assert!(rss > 100 << 10 && rss.is_multiple_of(1024));
        assert_eq!(field_bytes("/proc/self/status", "Name"), None);
    }
}
