//! What `/proc` tells about a process: its memory and its threads.

use anyhow::{Context, Result};
use memfold_experiment::kilobytes;
use serde::{Deserialize, Serialize};
use std::fs;

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident now (`VmRSS`).
    pub rss_bytes: u64,
    /// Most that ever was resident in this program (`VmHWM`), unlike `ru_maxrss` without what it had before `exec`.
    pub rss_peak_bytes: u64,
    /// Of the resident bytes those that are anonymous, so neither code nor files (`RssAnon`).
    pub anonymous_bytes: u64,
}

/// One thread of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// CPU time that it has used, ns (`schedstat`).
    pub cpu_ns: u64,
    /// Scheduling policy (sched(7)): 0 is the ordinary one, 1 is `SCHED_FIFO`, 2 is `SCHED_RR`.
    pub policy: u32,
    /// Real-time priority, 0 under an ordinary policy.
    pub priority: u32,
}

impl Memory {
    /// Of process `pid`, which may be `self`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of(pid: &str) -> Result<Memory> {
        let file = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        Ok(Memory {
            rss_bytes: kilobytes(&text, "VmRSS:"),
            rss_peak_bytes: kilobytes(&text, "VmHWM:"),
            anonymous_bytes: kilobytes(&text, "RssAnon:"),
        })
    }
}

/// Resident memory of process `pid` now, bytes: cheaper than [`Memory::of`], for samples.
///
/// # Errors
/// When the process is gone.
pub fn resident(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/statm");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Ok(pages * memfold_sys::PAGE_SIZE as u64)
}

/// The proportional share of process `pid` (`Pss`): what it shares with others counts in parts, bytes.
///
/// # Errors
/// When the process is gone.
pub fn proportional(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    Ok(kilobytes(&text, "Pss:"))
}

/// Process `root` and all its descendants that are not reaped, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u64)> = pids.filter_map(|pid| Some((pid, number(pid, 1).ok()?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = parents.iter().filter(|(pid, of)| *of == u64::from(parent) && !found.contains(pid));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        found.extend(children);
        next += 1;
    }
    found
}

/// CPU time of process `pid` and of the children that it has reaped, ns.
///
/// # Errors
/// When the process is gone.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    // utime, stime, cutime and cstime, in ticks of 1/100 s: USER_HZ is 100 on every Linux that memfold runs on.
    let ticks = (11..15).map(|place| number(pid, place)).sum::<Result<u64>>()?;
    Ok(ticks * 10_000_000)
}

/// Minor faults of process `pid` so far, those of all its threads among them.
///
/// # Errors
/// When the process is gone.
pub fn faults(pid: u32) -> Result<u64> {
    number(pid, 7)
}

/// A number of `/proc/PID/stat`, by its place behind the name, the state being 0.
fn number(pid: u32, place: usize) -> Result<u64> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    // The name stands in parentheses and may itself contain some (proc_pid_stat(5)).
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_whitespace().nth(place).and_then(|field| field.parse().ok());
    field.with_context(|| format!("{file} has no number in place {}", place + 3))
}

/// Memory that programs can still have without swapping (`MemAvailable`), bytes.
pub fn available_memory() -> u64 {
    kilobytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

/// Tries to give a thread the lowest real-time priority, which is what the pager's fault thread asks for.
///
/// # Errors
/// Why neither this process nor one that it starts may do so.
pub fn try_real_time() -> memfold_sys::Result<()> {
    use memfold_sys::thread::{set_scheduling, Scheduling};
    let attempt = std::thread::spawn(|| set_scheduling(Scheduling::RealTime { priority: 1 }));
    attempt.join().unwrap_or(Err(memfold_sys::Errno::EPERM))
}

/// The threads of process `pid`.
///
/// # Errors
/// When the process is gone.
pub fn threads(pid: u32) -> Result<Vec<Thread>> {
    let directory = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))?;
    // A thread may end between the listing and the reading; it is left out.
    Ok(entries.flatten().filter_map(|entry| thread(&entry.path().to_string_lossy())).collect())
}

fn thread(directory: &str) -> Option<Thread> {
    let stat = fs::read_to_string(format!("{directory}/stat")).ok()?;
    let schedstat = fs::read_to_string(format!("{directory}/schedstat")).ok()?;
    // The name stands in parentheses and may itself contain some (proc_pid_stat(5)).
    let (head, rest) = stat.rsplit_once(')')?;
    let (tid, name) = head.split_once(" (")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Thread {
        tid: tid.parse().ok()?,
        name: name.to_owned(),
        cpu_ns: schedstat.split_whitespace().next()?.parse().ok()?,
        priority: fields.get(37)?.parse().ok()?,
        policy: fields.get(38)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_memory_and_threads() {
        let memory = Memory::of("self").unwrap();
        assert!(memory.rss_bytes > 0 && memory.rss_peak_bytes >= memory.rss_bytes);
        assert!(memory.anonymous_bytes < memory.rss_bytes);
        assert!(faults(std::process::id()).unwrap() > 0);
        let share = proportional(std::process::id()).unwrap();
        assert!(share > 0 && share <= Memory::of("self").unwrap().rss_peak_bytes);
        // The kernel counts in clock ticks: use up a few.
        while memfold_sys::time::thread_cpu() < memfold_sys::time::Nanos::from_millis(50) {
            std::hint::spin_loop();
        }
        let own = threads(std::process::id()).unwrap();
        // SAFETY: no arguments, no effects.
        let tid = unsafe { libc::gettid() } as u32;
        let this = own.iter().find(|t| t.tid == tid).expect("the calling thread is listed");
        assert!(cpu_ns(std::process::id()).unwrap() > 0);
        assert!(this.cpu_ns > 0 && this.policy == 0 && this.priority == 0, "{this:?}");
    }

    #[test]
    fn a_tree_is_a_process_with_its_children_and_theirs_and_nobody_else() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        // The child says its own child's number.
        shell.args(["-c", "(sleep 1000 & echo $!; wait) & wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let found = tree(shell.id());
        assert_eq!(found[0], shell.id());
        assert_eq!((found.len(), found[2]), (3, line.trim().parse().unwrap()), "{found:?}");
        let all = tree(std::process::id());
        assert!(found.iter().all(|pid| all.contains(pid)));
        for pid in found {
            // SAFETY: a signal to a child of ours, not reaped yet, and its descendants.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        shell.wait().unwrap();
    }
}
