//! A filter of system calls that ends processes (seccomp(2)): a program under it would be ended for a call of folding's, which it may never make itself.
//!
//! So a child makes all of them first, where the launcher is under a filter. What such a filter answers with an error is no matter: the library puts up with it.
//!
//! What it is not: for filters that a program sets itself, before which folding ends, nor for what makes the launcher's own calls fatal.

use crate::calls::{self, Call};
use crate::process;
use memfold_sys::{call, PAGE_SIZE};
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::signal::{signal, SigHandler, Signal};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Why no program can be folded with this tier under the filter that the launcher is under, and what helps; `None` where one can.
pub fn hindrance(tier: Option<&str>) -> Option<String> {
    // No other mode of seccomp leaves a process the calls that a launcher makes.
    process::field("/proc/self/status", "Seccomp").filter(|mode| mode == "2")?;
    let name = fatal(&calls::of_folding(tier))?;
    Some(format!(
        "the filter of system calls that holds here ends a process that calls {name}: permit it, as by SystemCallFilter={name} in a unit, or have \
         `memfold service` permit all that folding calls"
    ))
}

/// The first of the calls that ends a process which makes it.
fn fatal(calls: &[Call]) -> Option<&'static str> {
    let (read_write, shared) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
    // SAFETY: new memory, at no address that anybody has.
    let page = unsafe { mmap_anonymous(None, NonZeroUsize::new(PAGE_SIZE)?, read_write, shared) }.ok()?;
    // SAFETY: the page is zeros, aligned, and there until the end of this function.
    let reached = unsafe { page.cast::<AtomicUsize>().as_ref() };
    // SAFETY: sets a disposition, no handler. How a child ended is not told while it is ignored. The child only makes system calls, whichever threads there are.
    let child = unsafe {
        let _ = signal(Signal::SIGCHLD, SigHandler::SigDfl);
        match libc::fork() {
            0 => make(calls, reached),
            child => child,
        }
    };
    let mut status = 0;
    // SAFETY: our own child, which nobody else waits for.
    let mut wait = || unsafe { libc::waitpid(child, &raw mut status, 0) } == -1;
    while child > 0 && wait() && nix::errno::Errno::last() == nix::errno::Errno::EINTR {}
    let found = libc::WIFSIGNALED(status).then(|| calls[reached.load(Relaxed)].number.name());
    // SAFETY: nobody has the page any more.
    let _ = unsafe { munmap(page, PAGE_SIZE) };
    found
}

/// The life of the child, which the last of the calls ends, if no other does.
fn make(calls: &[Call], reached: &AtomicUsize) -> ! {
    // SAFETY: what the kernel refuses, and what only asks, raw, and in a process with nothing to lose. Its end is not to leave a core dump.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        for (place, tried) in calls.iter().enumerate() {
            reached.store(place, Relaxed);
            let _ = call::call(tried.number, tried.arguments);
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::call::Sysno;

    #[test]
    fn no_call_of_folding_is_fatal_by_itself_and_one_that_is_has_its_name() {
        assert_eq!(fatal(&calls::of_folding(Some("redis://a"))), None);
        let [refused, end] =
            [Sysno::close, Sysno::rt_sigreturn].map(|number| Call { number, arguments: [usize::MAX; 6] });
        // Without a frame of a signal's on the stack it ends by SIGSEGV.
        assert_eq!(fatal(&[refused, end, refused]), Some("rt_sigreturn"));
    }
}
