//! The system calls of folding: what the library and the pager's threads call in a program, which may never make such calls itself.
//!
//! Each is here with arguments that the kernel refuses, so that it can be tried without doing anything. What a filter might look at, flags and kinds, is as
//! folding has it.
//!
//! What it is not: the calls of the launcher, or those that a program makes itself and that only pass through the library.

use memfold_pager::tier::choice::Choice;
use memfold_sys::call::Sysno;
use memfold_sys::thread::FLAGS;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which.
    pub number: Sysno,
    /// What the kernel refuses, or what only asks.
    pub arguments: [usize; 6],
}

/// No descriptor, no process, no address, and more flags than there are.
const NONE: usize = usize::MAX;
const READ_WRITE: usize = (libc::PROT_READ | libc::PROT_WRITE) as usize;
const ANONYMOUS: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
/// What a thread of the pager's shares, but for the memory, without which there is none.
const THREAD: usize = (FLAGS & !libc::CLONE_VM) as usize;

const fn with<const N: usize>(number: Sysno, first: [usize; N]) -> Call {
    let mut arguments = [NONE; 6];
    let mut place = 0;
    while place < N {
        arguments[place] = first[place];
        place += 1;
    }
    Call { number, arguments }
}

const fn any(number: Sysno) -> Call {
    with(number, [])
}

/// Those that are made without a tier.
const FOLDING: &[Call] = &[
    // First: by it who tries them sees to it that nothing is dumped.
    with(Sysno::prctl, [libc::PR_SET_VMA as usize, libc::PR_SET_VMA_ANON_NAME as usize]),
    any(Sysno::capget),
    any(Sysno::capset),
    any(Sysno::clock_gettime),
    with(Sysno::clone, [THREAD]),
    any(Sysno::close),
    any(Sysno::close_range),
    any(Sysno::fallocate),
    any(Sysno::fcntl),
    with(Sysno::flock, [NONE, (libc::LOCK_EX | libc::LOCK_NB) as usize]),
    any(Sysno::fstat),
    any(Sysno::ftruncate),
    with(Sysno::futex, [NONE, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize]),
    any(Sysno::get_robust_list),
    any(Sysno::getcpu),
    any(Sysno::getdents64),
    any(Sysno::geteuid),
    any(Sysno::getpid),
    any(Sysno::getppid),
    any(Sysno::getpriority),
    any(Sysno::getrandom),
    any(Sysno::getresgid),
    any(Sysno::getresuid),
    any(Sysno::gettid),
    any(Sysno::io_destroy),
    any(Sysno::io_setup),
    any(Sysno::io_submit),
    any(Sysno::io_uring_register),
    any(Sysno::io_uring_setup),
    any(Sysno::ioctl),
    any(Sysno::lseek),
    with(Sysno::madvise, [NONE, NONE, libc::MADV_DONTNEED as usize]),
    any(Sysno::mincore),
    any(Sysno::mlock),
    with(Sysno::mmap, [0, 0, READ_WRITE, ANONYMOUS, NONE, 0]),
    with(Sysno::mprotect, [NONE, NONE, READ_WRITE]),
    any(Sysno::mremap),
    any(Sysno::munlock),
    any(Sysno::munmap),
    any(Sysno::nanosleep),
    any(Sysno::openat),
    any(Sysno::pidfd_getfd),
    any(Sysno::pidfd_open),
    any(Sysno::ppoll),
    any(Sysno::pread64),
    any(Sysno::prlimit64),
    any(Sysno::process_vm_readv),
    any(Sysno::process_vm_writev),
    any(Sysno::pwrite64),
    any(Sysno::read),
    any(Sysno::readlinkat),
    any(Sysno::renameat2),
    any(Sysno::rt_sigpending),
    any(Sysno::rt_sigprocmask),
    any(Sysno::rt_sigtimedwait),
    any(Sysno::sched_getaffinity),
    any(Sysno::sched_setaffinity),
    any(Sysno::sched_setscheduler),
    any(Sysno::sched_yield),
    any(Sysno::setpriority),
    any(Sysno::statx),
    any(Sysno::tgkill),
    any(Sysno::uname),
    any(Sysno::unlinkat),
    any(Sysno::userfaultfd),
    any(Sysno::write),
];
/// Those of the tier below memory, whose thread waits for what it reads.
const OF_TIER: &[Call] = &[any(Sysno::io_getevents)];
/// Those of a tier on the network, which a process beside the program keeps.
const OF_NETWORK: &[Call] = &[
    any(Sysno::connect),
    any(Sysno::recvfrom),
    any(Sysno::sendto),
    with(Sysno::socket, [libc::AF_UNIX as usize]),
];
/// What ends a thread, and who tries it.
const LAST: Call = with(Sysno::exit, [0]);

/// The calls of folding with this tier, that which ends a thread last.
pub fn of_folding(tier: Option<&str>) -> Vec<Call> {
    let on_network =
        tier.and_then(|text| Choice::parse(text).ok()).is_some_and(|tier| tier.engines().is_some());
    let lists = [(FOLDING, true), (OF_TIER, tier.is_some()), (OF_NETWORK, on_network)];
    lists.iter().filter(|(_, made)| *made).flat_map(|(list, _)| *list).chain([&LAST]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::call;

    #[test]
    fn the_kernel_refuses_all_but_those_that_only_ask() {
        let mut done = Vec::new();
        for Call { number, arguments } in of_folding(Some("redis://a")) {
            // SAFETY: no address is valid, no descriptor open; what is not refused would fail the test.
            if number != LAST.number && unsafe { call::call(number, arguments) }.is_ok() {
                done.push(number.name());
            }
        }
        assert_eq!(done, ["geteuid", "getpid", "getppid", "gettid", "sched_yield"]);
    }
}
