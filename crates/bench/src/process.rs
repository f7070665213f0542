//! What `/proc` tells about a process: its memory and its threads.

use anyhow::{Context, Result};
use procfs::process::{all_processes, Process, Stat, Task};
use procfs::{Current, Meminfo};
use serde::{Deserialize, Serialize};

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

fn process(pid: u32) -> Result<Process> {
    Process::new(pid as i32).with_context(|| format!("cannot look at process {pid}"))
}

fn stat(pid: u32) -> Result<Stat> {
    process(pid)?.stat().with_context(|| format!("cannot read /proc/{pid}/stat"))
}

impl Memory {
    /// Of process `pid`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of(pid: u32) -> Result<Memory> {
        let status = process(pid)?.status().with_context(|| format!("cannot read /proc/{pid}/status"))?;
        // One that has just ended has none; it is a zombie until it is reaped.
        let bytes = |kib: Option<u64>| kib.unwrap_or(0) * 1024;
        Ok(Memory {
            rss_bytes: bytes(status.vmrss),
            rss_peak_bytes: bytes(status.vmhwm),
            anonymous_bytes: bytes(status.rssanon),
        })
    }
}

/// Resident memory of process `pid` now, bytes: cheaper than [`Memory::of`], for samples.
///
/// # Errors
/// When the process is gone.
pub fn resident(pid: u32) -> Result<u64> {
    Ok(process(pid)?.statm()?.resident * memfold_sys::PAGE_SIZE as u64)
}

/// The proportional share of process `pid` (`Pss`): what it shares with others counts in parts, bytes.
///
/// # Errors
/// When the process is gone.
pub fn proportional(pid: u32) -> Result<u64> {
    let rollup = process(pid)?.smaps_rollup()?.memory_map_rollup;
    Ok(rollup.0.first().and_then(|map| map.extension.map.get("Pss")).copied().unwrap_or(0))
}

/// Process `root` and all its descendants that are not reaped, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    let all = all_processes().into_iter().flatten().flatten();
    let parents: Vec<Stat> = all.filter_map(|process| process.stat().ok()).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let of = |stat: &&Stat| stat.ppid as u32 == parent && !found.contains(&(stat.pid as u32));
        let children: Vec<u32> = parents.iter().filter(of).map(|stat| stat.pid as u32).collect();
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
    let stat = stat(pid)?;
    let children = (stat.cutime + stat.cstime).max(0) as u64;
    Ok((stat.utime + stat.stime + children) * (1_000_000_000 / procfs::ticks_per_second()))
}

/// Minor faults of process `pid` so far, those of all its threads among them.
///
/// # Errors
/// When the process is gone.
pub fn faults(pid: u32) -> Result<u64> {
    Ok(stat(pid)?.minflt)
}

/// Memory that programs can still have without swapping (`MemAvailable`), bytes.
pub fn available_memory() -> u64 {
    Meminfo::current().ok().and_then(|memory| memory.mem_available).unwrap_or(0)
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
    // A thread may end between the listing and the reading; it is left out.
    Ok(process(pid)?.tasks()?.flatten().filter_map(|task| thread(&task)).collect())
}

fn thread(task: &Task) -> Option<Thread> {
    let stat = task.stat().ok()?;
    Some(Thread {
        tid: task.tid as u32,
        name: stat.comm,
        cpu_ns: task.schedstat().ok()?.sum_exec_runtime,
        priority: stat.rt_priority?,
        policy: stat.policy?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_memory_and_threads() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.rss_bytes > 0 && memory.rss_peak_bytes >= memory.rss_bytes);
        assert!(memory.anonymous_bytes < memory.rss_bytes);
        assert!(faults(std::process::id()).unwrap() > 0);
        let share = proportional(std::process::id()).unwrap();
        assert!(share > 0 && share <= Memory::of(std::process::id()).unwrap().rss_peak_bytes);
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
