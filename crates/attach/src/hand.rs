//! A process of our own that does something to another one and ends at once, whatever becomes of who asked for it.
//!
//! Other threads of this process may be at other processes meanwhile, and what they have open may be the lock on one: the child has a table of its own.
//!
//! A thread of another process that has borrowed registers must get its own back. So what borrows them is not killed with the command, with its process
//! group, or by its terminal: it is a child in a session of its own with all signals blocked, which lives as long as the thread is stopped.
//!
//! What it is not: safe from `SIGKILL` to itself, or to its whole control group.
//!
//! Invariants: the child runs nothing of the parent's afterwards, has nothing of it open but what it is to keep, and says all that it has to say in plain words.

use crate::wait_until;
use memfold_sys::table;
use nix::errno::Errno;
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{fork, setsid, ForkResult, Pid};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::RawFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;
use std::time::Duration;

/// What the child leaves behind: zeros until it has written.
struct Answer<R> {
    is_there: bool,
    result: MaybeUninit<R>,
}

/// What becomes of a child that takes longer than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// It goes on.
    GoesOn,
    /// It is killed; it may be left where the kernel waits for somebody who does not answer.
    Killed,
}

/// Has a child do the work, with nothing open but `keep`. What it returns; `None` if it ended before, or takes longer than that, when it is not waited for any more.
///
/// # Errors
/// There is no process or no page for it.
pub fn do_apart<R: Copy, const N: usize>(
    keep: [RawFd; N],
    patience: Duration,
    late: Late,
    work: impl FnOnce() -> R,
) -> nix::Result<Option<R>> {
    let len = NonZeroUsize::new(size_of::<Answer<R>>()).ok_or(Errno::EINVAL)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping.
    let page = unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_SHARED)? };
    let answer = page.cast::<Answer<R>>();
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: libc keeps its heap whole for the child, which works, writes its answer and ends.
    let forked = unsafe { fork() };
    if let Ok(ForkResult::Child) = forked {
        let _ = setsid();
        // A sandbox may forbid it.
        let _ = table::leave(keep.map(Some));
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            // SAFETY: the page is there, as large as that, and nobody reads it before this process has ended.
            unsafe { answer.write(Answer { is_there: true, result: MaybeUninit::new(result) }) };
        }
        // SAFETY: ends the child, and runs nothing of the parent's.
        unsafe { libc::_exit(0) }
    }
    let _ = before.thread_set_mask();
    let made = forked.map(|forked| {
        let ended = match forked {
            ForkResult::Parent { child } => {
                has_ended(child, patience) || {
                    leave_behind(child, late);
                    false
                }
            }
            ForkResult::Child => false,
        };
        // SAFETY: a page of zeros, or what the child has written whole before it ended.
        unsafe { (ended && answer.as_ref().is_there).then(|| answer.as_ref().result.assume_init()) }
    });
    // SAFETY: mapped above, and used by nobody any more.
    let _ = unsafe { munmap(page, len.get()) };
    made
}

/// Waits until a child has ended. Whether it has.
fn has_ended(child: Pid, patience: Duration) -> bool {
    let ended = wait_until(patience, || {
        // Where children are not waited for here (`SIGCHLD` is ignored), it fails when it has ended.
        Ok(!matches!(
            waitpid(child, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)
        ))
    });
    ended.unwrap_or(false)
}

/// Has nobody wait for a child but a thread of its own, so that nothing is left of it when it has ended.
fn leave_behind(child: Pid, late: Late) {
    if late == Late::Killed {
        let _ = kill(child, Signal::SIGKILL);
    }
    let _ = thread::Builder::new().spawn(move || while waitpid(child, None) == Err(Errno::EINTR) {});
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{fcntl, FcntlArg, OFlag};
    use std::io::{PipeReader, Read};
    use std::os::fd::AsRawFd;
    use std::thread::sleep;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_child_has_done_is_told_and_one_that_was_killed_tells_nothing() {
        let told = do_apart([], LONG, Late::GoesOn, std::process::id).unwrap();
        assert!(told.is_some_and(|pid| pid != std::process::id()));
        assert_eq!(do_apart([], LONG, Late::GoesOn, || panic!("meant")).unwrap(), None::<u32>);
        // SAFETY: the child's own end.
        assert_eq!(do_apart([], LONG, Late::GoesOn, || unsafe { libc::abort() }).unwrap(), None::<u32>);
        let slow = do_apart([], Duration::from_millis(20), Late::GoesOn, || sleep(Duration::from_secs(1)));
        assert_eq!(slow.unwrap(), None);
        assert!(!SigSet::thread_get_mask().unwrap().contains(nix::sys::signal::Signal::SIGUSR1));
    }

    #[test]
    fn a_child_holds_nothing_of_other_threads_and_one_that_is_late_is_killed() {
        // The end of a pipe is read when nobody has the other end open any more.
        let is_over = |mut pipe: &PipeReader| {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
            wait_until(LONG, || Ok(pipe.read(&mut [0]).is_ok_and(|len| len == 0))).unwrap()
        };
        let ((of_others, end), (own, kept)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let (mut told, tells) = std::io::pipe().unwrap();
        let (keep, moment) = (told.as_raw_fd(), Duration::from_millis(20));
        let going_on = do_apart([keep], moment, Late::GoesOn, || told.read(&mut [0]).is_ok());
        assert_eq!(going_on.unwrap(), None);
        drop(end);
        assert!(is_over(&of_others));
        drop(tells);
        let killed = do_apart([kept.as_raw_fd()], moment, Late::Killed, || sleep(LONG * 2));
        assert_eq!(killed.unwrap(), None);
        drop(kept);
        assert!(is_over(&own));
    }
}
