//! The threads of a process: which of them to stop, and what an interruption does to the system call that one is in.

use crate::error::{Trouble, Unfit};
use crate::proc;
use memfold_sys::thread::agent_name;
use std::fs;
use std::time::Duration;

/// A thread that may be stopped.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The kernel's number of it.
    pub tid: u32,
    /// The lower the better.
    pub rank: u32,
}

/// System calls that the kernel restarts whatever they waited for, and that have done nothing yet (signal(7)).
const RESTARTED: [i64; 11] = [
    libc::SYS_futex,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
];

/// `libc` does not have it.
const IO_PGETEVENTS: i64 = 333;

/// System calls that the kernel ends with `EINTR` when their thread is stopped and goes on, without a signal (signal(7)).
const ENDED: [i64; 9] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
];

/// System calls that may have done a part already, and then return how much when their thread is stopped, which only a signal ever does to them: who
/// sleeps in one is let alone.
const IN_PARTS: [i64; 14] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_copy_file_range,
];

/// System calls that it ends so on a socket for which a time is set (`SO_RCVTIMEO`, `SO_SNDTIMEO`), before they have done anything.
const ENDED_ON_SOCKETS: [i64; 13] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
];

/// The threads of a process that may be stopped.
pub fn candidates(pid: u32) -> Result<Vec<Candidate>, Trouble> {
    let tids = all(pid);
    if tids.is_empty() {
        return Err(Trouble::Ended);
    }
    Ok(tids.into_iter().filter_map(|tid| Some(Candidate { tid, rank: rank(pid, tid)? })).collect())
}

fn all(pid: u32) -> Vec<u32> {
    proc::numbers(&format!("/proc/{pid}/task"))
}

/// `PF_IO_WORKER`, `PF_USER_WORKER` and `PF_KTHREAD` of include/linux/sched.h: threads that the kernel has in a process, as io_uring's, which never execute the
/// program.
const OF_KERNEL: u32 = 0x10 | 0x4000 | 0x20_0000;

/// Of what follows a thread's name: whether it is the kernel's.
fn is_of_kernel(rest: &str) -> Option<bool> {
    Some(rest.split(' ').nth(6)?.parse::<u32>().ok()? & OF_KERNEL != 0)
}

/// The threads that execute the program: those that have not ended and are neither the agent's nor the kernel's.
pub fn of_program(pid: u32) -> Vec<u32> {
    let executes = |tid: &u32| {
        stat(pid, *tid).is_some_and(|(name, rest)| {
            !rest.starts_with('Z') && !agent_name::is(&name) && is_of_kernel(&rest) == Some(false)
        })
    };
    all(pid).into_iter().filter(executes).collect()
}

/// Whether it has a thread of memfold's.
pub fn are_memfolds(pid: u32) -> bool {
    all(pid).into_iter().any(|tid| stat(pid, tid).is_some_and(|(name, _)| agent_name::is(&name)))
}

/// A thread of the process that has not ended and is not the agent's: the first one, if it is such.
pub fn living(pid: u32) -> Option<u32> {
    let lives = |tid: &u32| {
        stat(pid, *tid).is_some_and(|(name, rest)| !rest.starts_with('Z') && !agent_name::is(&name))
    };
    Some(pid).filter(lives).or_else(|| all(pid).into_iter().find(lives))
}

fn state(pid: u32, tid: u32) -> Option<char> {
    stat(pid, tid)?.1.chars().next()
}

/// When a process began, since the machine booted.
pub fn began(pid: u32) -> Option<Duration> {
    // Field 22, of which the third comes first: ticks of 1/100 s.
    let ticks: u64 = stat(pid, pid)?.1.split(' ').nth(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// How large a process's address space is, bytes.
pub fn memory_size(pid: u32) -> Option<u64> {
    // Field 23, of which the third comes first.
    stat(pid, pid)?.1.split(' ').nth(20)?.parse().ok()
}

/// The name of a thread, and what follows it.
fn stat(pid: u32, tid: u32) -> Option<(String, String)> {
    let stat = proc::text(&format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let (before, rest) = stat.rsplit_once(") ")?;
    Some((before.split_once('(')?.1.to_owned(), rest.to_owned()))
}

/// Whether nobody traces the thread but this process, if anybody does, and no filter of system calls is in force for it.
pub fn is_ours(pid: u32, tid: u32) -> bool {
    let status = proc::text(&format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    let tracer = field("TracerPid:").and_then(|tracer| tracer.parse().ok()).unwrap_or(0);
    [0, std::process::id()].contains(&tracer) && !is_filtered(&status)
}

fn is_filtered(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

/// Whether a filter of system calls is in force for all threads.
pub fn are_filtered(pid: u32) -> bool {
    let status = |tid| proc::text(&format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let tids = all(pid);
    !tids.is_empty() && tids.into_iter().all(|tid| is_filtered(&status(tid)))
}

/// Why no thread could be stopped; `unfit` is what one did that was.
pub fn what_keeps_all(pid: u32, unfit: Option<Unfit>) -> Trouble {
    match all(pid).into_iter().all(|tid| matches!(state(pid, tid), Some('T' | 't' | 'Z') | None)) {
        true => Trouble::Suspended,
        false if are_filtered(pid) => Trouble::Filtered,
        false => unfit.map_or(Trouble::Busy, Trouble::Unfit),
    }
}

/// Whether the thread may be stopped in what it does at this moment. It is seized already.
pub fn may_be_stopped(pid: u32, tid: u32) -> bool {
    rank(pid, tid).is_some()
}

/// What stopping the thread costs it; `None` where it cannot be stopped, or is the agent's.
fn rank(pid: u32, tid: u32) -> Option<u32> {
    let (name, rest) = stat(pid, tid)?;
    if is_of_kernel(&rest)? || agent_name::is(&name) || !is_ours(pid, tid) {
        return None;
    }
    match rest.chars().next()? {
        // It sleeps and can be woken; which system call it is in says how that ends.
        'S' => {
            let line = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
            let number: Option<i64> = line.split(' ').next().and_then(|number| number.parse().ok());
            match number {
                Some(number) if RESTARTED.contains(&number) => Some(0),
                Some(number) if ENDED.contains(&number) => Some(3),
                Some(number) if is_in_parts(number, &line) => None,
                _ => Some(2),
            }
        }
        'R' => Some(1),
        _ => None,
    }
}

/// Whether a system call may have done a part already: one of [`IN_PARTS`], or one that takes all that was asked for (`MSG_WAITALL`). `line` is what the
/// kernel tells of it, its number and its arguments.
fn is_in_parts(number: i64, line: &str) -> bool {
    let argument = |n: usize| {
        let word = line.split(' ').nth(1 + n)?.strip_prefix("0x")?;
        u64::from_str_radix(word, 16).ok()
    };
    let waits = |flags: Option<u64>| flags.is_none_or(|flags| flags & libc::MSG_WAITALL as u64 != 0);
    IN_PARTS.contains(&number)
        || number == libc::SYS_recvfrom && waits(argument(3))
        || number == libc::SYS_recvmsg && waits(argument(2))
}

/// Whether the thread with these registers was in a system call that our interruption ended, and that the kernel does not restart.
pub fn is_ended_by_interruption(registers: &libc::user_regs_struct, is_socket: impl Fn(i32) -> bool) -> bool {
    let number = registers.orig_rax as i64;
    registers.rax as i64 == -i64::from(libc::EINTR)
        && (ENDED.contains(&number) || ENDED_ON_SOCKETS.contains(&number) && is_socket(registers.rdi as i32))
}

/// Whether the thread has a socket by that number.
pub fn is_socket(tid: u32, number: i32) -> bool {
    let link = fs::read_link(format!("/proc/{tid}/fd/{number}")).unwrap_or_default();
    link.to_str().is_some_and(|link| link.starts_with("socket:"))
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
        assert!(is_ended_by_interruption(&registers, |fd| fd == 5));
        registers.rax = 3;
        assert!(!is_ended_by_interruption(&registers, |fd| fd == 5));
        registers.rax = -i64::from(libc::EINTR) as u64;
        registers.orig_rax = libc::SYS_read as u64;
        assert!(!is_ended_by_interruption(&registers, |fd| fd == 5));
        registers.rdi = 5;
        assert!(is_ended_by_interruption(&registers, |fd| fd == 5));
        registers.orig_rax = libc::SYS_futex as u64;
        assert!(!is_ended_by_interruption(&registers, |fd| fd == 5));
    }

    #[test]
    fn who_may_have_done_a_part_is_told_from_who_has_done_nothing() {
        let in_parts = |number: i64, line: &str| is_in_parts(number, line);
        assert!(in_parts(1, "1 0x1 0x7f00 0x100000 0x0 0x0 0x0 0x7ffc 0x7f11"));
        assert!(!in_parts(0, "0 0x0 0x7f00 0x400 0x0 0x0 0x0 0x7ffc 0x7f11"));
        assert!(in_parts(libc::SYS_recvfrom, "45 0x3 0x7f00 0x64 0x100 0x0 0x0 0x7ffc 0x7f11"));
        assert!(!in_parts(libc::SYS_recvfrom, "45 0x3 0x7f00 0x64 0x40 0x0 0x0 0x7ffc 0x7f11"));
        assert!(in_parts(libc::SYS_recvmsg, "47 0x3 0x7f00 0x100 0x0 0x0 0x0 0x7ffc 0x7f11"));
        assert!(!in_parts(libc::SYS_recvmsg, "47 0x3 0x7f00 0x0 0x0 0x0 0x0 0x7ffc 0x7f11"));
    }

    #[test]
    fn a_process_that_has_a_part_of_what_it_waits_for_is_let_alone() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &ours, &[1; 10]).unwrap();
        // SAFETY: the child makes calls that are safe after a fork, and ends.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut got = [0u8; 100];
                let socket = std::os::fd::AsRawFd::as_raw_fd(&theirs);
                let all = libc::recv(socket, got.as_mut_ptr().cast(), got.len(), libc::MSG_WAITALL);
                libc::_exit(i32::from(all != 100));
            }
            child
        };
        let is_waiting = || {
            let line = fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
            state(child as u32, child as u32) == Some('S')
                && line.starts_with(&libc::SYS_recvfrom.to_string())
        };
        while !is_waiting() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(candidates(child as u32).unwrap().is_empty(), "it would return ten bytes of a hundred");
        std::io::Write::write_all(&mut &ours, &[1; 90]).unwrap();
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn threads_of_this_process_are_found_and_may_be_stopped() {
        let found = candidates(std::process::id()).unwrap();
        assert!(!found.is_empty() && found.iter().all(|candidate| candidate.rank <= 3));
        assert_eq!(living(std::process::id()), Some(std::process::id()));
        assert!(is_ours(std::process::id(), std::process::id()) && !are_filtered(std::process::id()));
    }
}
