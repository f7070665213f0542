//! The threads of a process: which of them to stop, and what an interruption does to the system call that one is in.

use crate::Error;
use nix::errno::Errno;
use std::fs;

/// A thread that may be stopped.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The kernel's number of it.
    pub tid: u32,
    /// The lower the better.
    pub rank: u32,
}

/// System calls that the kernel ends with `EINTR` when their thread is stopped and goes on, without a signal (signal(7)).
const ENDED: [i64; 8] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
];

/// The threads of a process that may be stopped.
pub fn candidates(pid: u32) -> Result<Vec<Candidate>, Error> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Error::Ended(pid))?;
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    Ok(tids.filter_map(|tid| Some(Candidate { tid, rank: rank(pid, tid)? })).collect())
}

/// What stopping the thread costs it; `None` where it cannot be stopped, or is the agent's.
fn rank(pid: u32, tid: u32) -> Option<u32> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
    let stat = read("stat").ok()?;
    let (name, rest) = (stat.split_once('(')?.1, stat.rsplit_once(") ")?.1);
    if name.starts_with("memfold-") {
        return None;
    }
    match rest.chars().next()? {
        // It sleeps and can be woken; which system call it is in says how that ends.
        'S' => {
            let number: Option<i64> =
                read("syscall").ok().and_then(|line| line.split(' ').next()?.parse().ok());
            Some(if number.is_some_and(|number| ENDED.contains(&number)) { 2 } else { 0 })
        }
        'R' => Some(1),
        _ => None,
    }
}

/// Whether the thread with these registers was in a system call that our interruption ended, and that the kernel does not restart.
pub fn is_ended_by_interruption(registers: &libc::user_regs_struct) -> bool {
    ENDED.contains(&(registers.orig_rax as i64)) && registers.rax as i64 == -i64::from(libc::EINTR)
}

/// Whether there is a signal for the thread that it does not block.
pub fn has_signal(pid: u32, tid: u32, mask: u64) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")) else { return false };
    let pending = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    (pending("SigPnd:") | pending("ShdPnd:")) & !mask != 0
}

/// Why a process may not be traced.
pub fn forbidden(pid: u32, errno: Errno) -> Error {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let remedy = match scope.trim() {
        "1" => "kernel.yama.ptrace_scope is 1: attach as root, or set it to 0",
        "2" => "kernel.yama.ptrace_scope is 2: attach as root",
        "3" => "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the machine starts anew",
        _ => "it belongs to another user, or has rights that this user has not: attach as root",
    };
    Error::Forbidden(pid, errno, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_ended_is_told_from_one_that_is_restarted() {
        // SAFETY: plain words.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        registers.orig_rax = libc::SYS_epoll_wait as u64;
        registers.rax = -i64::from(libc::EINTR) as u64;
        assert!(is_ended_by_interruption(&registers));
        registers.rax = 3;
        assert!(!is_ended_by_interruption(&registers));
        registers.rax = -i64::from(libc::EINTR) as u64;
        registers.orig_rax = libc::SYS_futex as u64;
        assert!(!is_ended_by_interruption(&registers));
    }

    #[test]
    fn threads_of_this_process_are_found_and_may_be_stopped() {
        let found = candidates(std::process::id()).unwrap();
        assert!(!found.is_empty() && found.iter().all(|candidate| candidate.rank <= 2));
    }
}
