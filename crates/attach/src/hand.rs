//! A process of our own that does something to another one and ends at once, whatever becomes of who asked for it.
//!
//! A thread of another process that has borrowed registers must get its own back. So what borrows them is not killed with the command, with its process
//! group, or by its terminal: it is a child in a session of its own with all signals blocked, which lives as long as the thread is stopped.
//!
//! What it is not: safe from `SIGKILL` to itself, or to its whole control group.
//!
//! Invariants: the child runs nothing of the parent's afterwards, and says all that it has to say in plain words.

use crate::wait_until;
use nix::errno::Errno;
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{fork, setsid, ForkResult, Pid};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

/// What the child leaves behind: zeros until it has written.
struct Answer<R> {
    is_there: bool,
    result: MaybeUninit<R>,
}

/// Has a child do the work. What it returns; `None` if it ended before, or takes longer than that: it goes on then, and nobody waits for it.
///
/// # Errors
/// There is no process or no page for it.
pub fn do_apart<R: Copy>(patience: Duration, work: impl FnOnce() -> R) -> nix::Result<Option<R>> {
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
            ForkResult::Parent { child } => has_ended(child, patience),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_child_has_done_is_told_and_one_that_was_killed_tells_nothing() {
        let told = do_apart(LONG, std::process::id).unwrap();
        assert!(told.is_some_and(|pid| pid != std::process::id()));
        assert_eq!(do_apart(LONG, || panic!("meant")).unwrap(), None::<u32>);
        // SAFETY: the child's own end.
        assert_eq!(do_apart(LONG, || unsafe { libc::abort() }).unwrap(), None::<u32>);
        let slow = do_apart(Duration::from_millis(20), || sleep(Duration::from_secs(1)));
        assert_eq!(slow.unwrap(), None);
        assert!(!SigSet::thread_get_mask().unwrap().contains(nix::sys::signal::Signal::SIGUSR1));
    }
}
