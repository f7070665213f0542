//! What `/proc` says about a process.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The fields of `/proc/PID/stat` that memfold needs (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// One letter: `R`unning, `S`leeping, `T` stopped, `Z`ombie and others.
    pub state: char,
    /// Whether it is a thread of the kernel.
    pub of_kernel: bool,
    /// Start, since the machine booted.
    pub started: Duration,
    /// Resident bytes, as the kernel counts them.
    pub resident: u64,
}

impl Stat {
    /// Whether it is no zombie.
    pub fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Whether it runs and is the process that made a control page at that time; see [`made_page`].
    pub fn made_page(&self, page_started_ns: u64) -> bool {
        // A process starts before it makes its page. Its start is known to 10 ms, on a clock that also counts
        // the time that the machine slept; that much later is no other process.
        let slack = Duration::from_millis(50) + slept();
        self.runs() && self.started <= Duration::from_nanos(page_started_ns).saturating_add(slack)
    }
}

/// Reads `/proc/PID/stat`; `None` if there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    let line = text(&format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = behind_name(&line)?.collect();
    let state = fields.first()?.chars().next()?;
    /// `PF_KTHREAD` of include/linux/sched.h.
    const OF_KERNEL: u32 = 0x20_0000;
    let of_kernel = fields.get(6)?.parse::<u32>().ok()? & OF_KERNEL != 0;
    // Field 22 counts ticks of 1/100 s: USER_HZ is 100 on every Linux that memfold runs on.
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    let resident = fields.get(21)?.parse::<u64>().ok()?.saturating_mul(memfold_sys::PAGE_SIZE as u64);
    Some(Stat { state, of_kernel, started: Duration::from_millis(ticks * 10), resident })
}

/// The fields of `/proc/PID/stat` from the third on. The name before them, in parentheses, may hold anything, parentheses too.
fn behind_name(line: &str) -> Option<impl Iterator<Item = &str>> {
    Some(line[line.rfind(')')? + 1..].split_whitespace())
}

/// Where the words of this process's command line lie in its memory: address and bytes. `None` where the kernel does not tell.
pub fn arguments_in_memory() -> Option<(usize, usize)> {
    let line = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = behind_name(&line)?;
    // Fields 48 and 49, of which the third comes first.
    let start: usize = fields.nth(45)?.parse().ok()?;
    let end: usize = fields.next()?.parse().ok()?;
    (start != 0 && end > start).then_some((start, end - start))
}

/// Whether the process runs: it exists and is no zombie.
pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.runs())
}

/// Whether the process that runs as `pid` is the one that made a control page at `page_started_ns`
/// (`CLOCK_MONOTONIC`), and not a later one with the same number.
pub fn made_page(pid: u32, page_started_ns: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.made_page(page_started_ns))
}

/// How long the machine has slept since it booted: `CLOCK_BOOTTIME` less `CLOCK_MONOTONIC`.
fn slept() -> Duration {
    let read = |clock| nix::time::clock_gettime(clock).map(Duration::from).unwrap_or_default();
    let monotonic = read(nix::time::ClockId::CLOCK_MONOTONIC);
    read(nix::time::ClockId::CLOCK_BOOTTIME).saturating_sub(monotonic)
}

/// Whether the process is of this user, by its effective user id.
pub fn is_own(pid: u32) -> bool {
    users(pid).get(1) == Some(&nix::unistd::geteuid().as_raw())
}

/// The user ids of a process: real, effective, saved, and that for files; none if there is no such process.
pub fn users(pid: u32) -> Vec<u32> {
    let ids = field(&format!("/proc/{pid}/status"), "Uid").unwrap_or_default();
    ids.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// All processes, as `/proc` numbers them.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The process that started it, or adopted it.
pub fn parent(pid: u32) -> Option<u32> {
    field(&format!("/proc/{pid}/status"), "PPid")?.parse().ok().filter(|&parent| parent != 0)
}

/// How many filters of system calls (seccomp) the process's main thread is under; `None` too before Linux 5.9, which does not tell.
pub fn filters(pid: u32) -> Option<u32> {
    field(&format!("/proc/{pid}/status"), "Seccomp_filters")?.parse().ok()
}

/// A variable of the environment that the process's program was started with; `None` too where that may not be read.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let block = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let texts = block.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    texts.into_iter().find_map(|text| Some(text.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The file of the program; `None` for a thread of the kernel, and where that may not be read.
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Whether the program has mapped a file of this name.
pub fn has_mapped(pid: u32, file: &str) -> bool {
    mapped(pid).iter().any(|path| path.file_name().is_some_and(|name| name == file))
}

/// The files that the program has mapped, removed ones by the path that they had; none where that may not be read.
pub fn mapped(pid: u32) -> Vec<PathBuf> {
    let maps = text(&format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let mut paths: Vec<_> =
        paths.map(|path| PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path))).collect();
    // A file is mapped in several pieces, one after the other.
    paths.dedup();
    paths
}

/// Whether the process has a thread of this name.
pub fn has_thread(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|found| found.trim_end() == name)
    })
}

/// The number of this process's PID namespace (pid_namespaces(7)); `None` where `/proc` does not tell.
pub fn namespace() -> Option<u64> {
    static NUMBER: OnceLock<Option<u64>> = OnceLock::new();
    *NUMBER.get_or_init(|| namespace_of(std::process::id()))
}

fn namespace_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|link| link.ino())
}

/// The processes in PID namespaces below ours, by the number of their namespace and the id that they have there. Those in others
/// cannot be seen.
#[derive(Default)]
pub struct Nested(Option<HashMap<(u64, u32), u32>>);

impl Nested {
    /// The id in our own namespace of the process that has `pid` in another one. Looks once, at all processes.
    pub fn find(&mut self, namespace: u64, pid: u32) -> Option<u32> {
        let found = self.0.get_or_insert_with(|| all().into_iter().filter_map(nested).collect());
        found.get(&(namespace, pid)).copied()
    }
}

fn nested(pid: u32) -> Option<((u64, u32), u32)> {
    let ids = field(&format!("/proc/{pid}/status"), "NSpid")?;
    // From our namespace down to its own.
    let innermost = ids.split_whitespace().skip(1).last()?.parse().ok()?;
    Some(((namespace_of(pid)?, innermost), pid))
}

/// The name of the program, as `ps` shows it; empty if there is no such process.
pub fn name(pid: u32) -> String {
    memfold_inspect::plain(text(&format!("/proc/{pid}/comm")).unwrap_or_default().trim_end())
}

/// The text of a file of `/proc`. A process and its files may be called anything: what is no UTF-8 in a name is replaced, and hides nothing beside it.
pub fn text(path: &str) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line `KEY: value` of a file such as `/proc/PID/status`.
pub fn field(path: &str, key: &str) -> Option<String> {
    text(path)?.lines().find_map(|l| Some(l.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
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
        assert!(made_page(pid, memfold_sys::time::now().0));
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
