//! What the daemon gives up for good, before it looks at anything that others wrote: capabilities, new privileges, and every system
//! call that it does not need. Whoever takes it over through a bug can start no program, open no connection and make no file.
//!
//! What it is not: a guard against what the daemon's user may do by reading and writing files that exist, which it needs itself, for
//! the control pages of programs under its budget.
//!
//! Invariants: threads that are started afterwards are confined like the one that called. A call that is not on the list fails with
//! `EPERM` and ends nobody: a C library that tries another one first goes on.

use seccompiler::{
    apply_filter, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::io;

/// Calls that take nothing dangerous, whatever their arguments.
const PLAIN: &[i64] = &[
    // Memory; `mmap` and `mprotect` are below.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads, and waiting.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals, to this process alone.
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    // Who it is.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_uname,
    // Connections that there are, and new ones at the sockets that there are.
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_ppoll,
    // Files that there are; `openat` is below.
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    // The daemon's own sockets, when it ends.
    libc::SYS_unlinkat,
    // The filter below answers it.
    libc::SYS_clone3,
];

/// Others of the same kind, which only this machine has.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[libc::SYS_poll, libc::SYS_readlink, libc::SYS_stat, libc::SYS_lstat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// `__O_TMPFILE` (asm-generic/fcntl.h), without the flag for directories that goes with it.
const TMPFILE: u64 = 0o20_000_000;

/// Confines the calling thread, and those that it starts, for ever.
///
/// # Errors
/// The kernel refuses, as one without seccomp filters does.
pub fn enter() -> io::Result<()> {
    // Compiled before anything is given up: what fails here leaves things as they were.
    let (no_clone3, only) = (no_clone3()?, only_what_is_needed()?);
    drop_capabilities()?;
    // SAFETY: no memory involved.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    [no_clone3, only].iter().try_for_each(|filter| apply_filter(filter).map_err(io::Error::other))
}

/// None, and no way to gain one.
fn drop_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        // Only who may change the set has anything to fear from it; the numbers end somewhere.
        // SAFETY: no memory involved.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            break;
        }
    }
    // SAFETY: no memory involved. It fails on a kernel that has no such set.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    memfold_sys::thread::drop_capabilities(0).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// `clone3` is not there: its flags lie in memory, where no filter sees them, and the C library then takes `clone`.
fn no_clone3() -> io::Result<BpfProgram> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))
}

fn only_what_is_needed() -> io::Result<BpfProgram> {
    let masked = |argument, mask, value| (argument, SeccompCmpOp::MaskedEq(mask), value);
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;
    let [map, clone, open] = [libc::PROT_EXEC as u64, thread, libc::O_CREAT as u64 | TMPFILE];
    let own = u64::from(std::process::id());
    let conditional = [
        (libc::SYS_mmap, vec![masked(2, map, 0)]),
        (libc::SYS_mprotect, vec![masked(2, map, 0)]),
        (libc::SYS_clone, vec![masked(0, clone, clone)]),
        (libc::SYS_openat, vec![masked(2, open, 0)]),
        (libc::SYS_tgkill, vec![(0, SeccompCmpOp::Eq, own)]),
        (libc::SYS_prctl, vec![(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)]),
        (libc::SYS_prctl, vec![(0, SeccompCmpOp::Eq, libc::PR_SET_VMA as u64)]),
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (call, conditions) in conditional {
        let conditions = conditions.into_iter().map(|(argument, operator, value)| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
                .map_err(io::Error::other)
        });
        let rule = SeccompRule::new(conditions.collect::<io::Result<_>>()?).map_err(io::Error::other)?;
        rules.entry(call).or_default().push(rule);
    }
    rules.extend(PLAIN.iter().chain(OLD).map(|&call| (call, Vec::new())));
    compile(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a child process, and returns what it says.
    fn in_child(act: impl FnOnce() -> u8) -> u8 {
        // SAFETY: the C library sees to it that a child can allocate; it ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(255);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(said)) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:x}");
        libc::WEXITSTATUS(status) as u8
    }

    /// The number of the first call that was not refused, counted from 1; 0 if all were.
    fn first_allowed(calls: &[(i64, [usize; 4])]) -> u8 {
        let allowed = calls.iter().position(|(call, [a, b, c, d])| {
            // SAFETY: each is refused, or fails for its arguments, or does no harm to a child that ends.
            unsafe { libc::syscall(*call, *a, *b, *c, *d) != -1 || *libc::__errno_location() != libc::EPERM }
        });
        allowed.map_or(0, |n| n as u8 + 1)
    }

    #[test]
    fn who_takes_the_daemon_over_can_start_connect_make_and_trace_nothing() {
        // It is not there: a program that was started would end well.
        let (path, file) = (c"/nonexistent".as_ptr() as usize, c"/tmp/memfold-sandbox".as_ptr() as usize);
        let here = libc::AT_FDCWD as usize;
        let parent = std::process::id() as usize;
        let write_exec = (libc::PROT_WRITE | libc::PROT_EXEC) as usize;
        let calls = [
            (libc::SYS_execve, [path, 0, 0, 0]),
            (libc::SYS_execveat, [here, path, 0, 0]),
            (libc::SYS_ptrace, [libc::PTRACE_TRACEME as usize, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [parent, 0, 0, 0]),
            (libc::SYS_kill, [parent, 0, 0, 0]),
            (libc::SYS_tgkill, [parent, parent, 0, 0]),
            (libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0]),
            (libc::SYS_socket, [libc::AF_INET as usize, libc::SOCK_STREAM as usize, 0, 0]),
            (libc::SYS_connect, [0, 0, 0, 0]),
            (libc::SYS_bind, [0, 0, 0, 0]),
            (libc::SYS_openat, [here, file, (libc::O_CREAT | libc::O_WRONLY) as usize, 0o600]),
            (
                libc::SYS_openat,
                [here, c"/tmp".as_ptr() as usize, (libc::O_TMPFILE | libc::O_RDWR) as usize, 0o600],
            ),
            (libc::SYS_mmap, [0, 4096, write_exec, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize]),
            (libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as usize, 0]),
            (libc::SYS_memfd_create, [file, 0, 0, 0]),
            (libc::SYS_userfaultfd, [0, 0, 0, 0]),
            (libc::SYS_ioctl, [0, libc::TIOCSTI as usize, 0, 0]),
            (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0]),
            (libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0]),
            (libc::SYS_mount, [0, 0, 0, 0]),
            (libc::SYS_setuid, [0, 0, 0, 0]),
            (libc::SYS_bpf, [0, 0, 0, 0]),
            (libc::SYS_io_uring_setup, [1, 0, 0, 0]),
            (libc::SYS_renameat2, [here, file, here, file]),
            (libc::SYS_fchmodat, [here, file, 0o777, 0]),
        ];
        // Outside, nearly all of them are allowed: it is the filter that refuses.
        assert_eq!(in_child(|| first_allowed(&[(libc::SYS_kill, [parent, 0, 0, 0])])), 1);
        assert_eq!(in_child(|| enter().map_or(254, |()| first_allowed(&calls))), 0);
    }

    #[test]
    fn what_the_daemon_does_it_can_still_do() {
        let done = in_child(|| {
            enter().unwrap();
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let field = |key: &str| {
                status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap()
            };
            assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1", "2"));
            assert_eq!((field("CapEff"), field("CapPrm")), ("0000000000000000", "0000000000000000"));
            // SAFETY: refused, whatever the arguments.
            let refused = unsafe { libc::syscall(libc::SYS_clone3, 0, 0) };
            let why = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((refused, why), (-1, Some(libc::ENOSYS)));
            let sum = std::thread::spawn(|| vec![1u8; 1 << 20].iter().map(|&n| u32::from(n)).sum::<u32>());
            assert_eq!(sum.join().unwrap(), 1 << 20);
            assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() > 0);
            assert!(std::fs::read_link("/proc/self/fd/0").is_ok());
            0
        });
        assert_eq!(done, 0);
    }
}
