//! Memory that somebody else can take the ground from: a look at it must not end the daemon.
//!
//! A channel is checked when it is taken over, but what the kernel has no memory for, or finds broken, raises SIGBUS at whoever
//! touches it, and a process can have its file give memory back at any time. The handler puts a page of zeros there, for the daemon
//! alone, and marks the channel: its process is left to itself, and nobody else notices.
//!
//! Invariants: the handler allocates nothing and takes no lock. A SIGBUS anywhere else ends the daemon as it always would.

use crate::quota;
use memfold_sys::{mem, PAGE_SIZE};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// A guarded range; zeros are none.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    torn: AtomicBool,
}

static PLACES: [Place; quota::MOST_THREADS] =
    [const { Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        quota::MOST_THREADS];

/// A range that is guarded for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards a mapping of the daemon's; `None` where too many are.
    pub fn over(start: usize, len: usize) -> Option<Guard> {
        let place = PLACES
            .iter()
            .position(|place| place.start.compare_exchange(0, start, AcqRel, Relaxed).is_ok())?;
        PLACES[place].torn.store(false, Relaxed);
        PLACES[place].end.store(start + len, Release);
        Some(Guard(place))
    }

    /// Whether a page of it was missing.
    pub fn is_torn(&self) -> bool {
        PLACES[self.0].torn.load(Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PLACES[self.0].end.store(0, Release);
        PLACES[self.0].start.store(0, Release);
    }
}

/// Has the process take SIGBUS as described. To be called once, before anything is guarded.
///
/// # Errors
/// The kernel refuses the handler.
pub(crate) fn install() -> io::Result<()> {
    // SAFETY: zeros are an action; the handler keeps to what one may do.
    let done = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = on_bus as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut())
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's description of the signal.
    let at = unsafe { (*info).si_addr() } as usize;
    let place = PLACES.iter().find(|place| {
        let (start, end) = (place.start.load(Acquire), place.end.load(Acquire));
        start != 0 && (start..end).contains(&at)
    });
    let mended = place.is_some_and(|place| {
        place.torn.store(true, Relaxed);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a page of a mapping of the daemon's own, of which nothing is to be had any more.
        unsafe { mem::mmap(at / PAGE_SIZE * PAGE_SIZE, PAGE_SIZE, prot, flags, -1, 0) }.is_ok()
    });
    if !mended {
        // The access is repeated, and ends the process as if there were no handler.
        // SAFETY: the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::file;

    #[test]
    fn memory_that_was_taken_away_reads_as_zeros_and_is_known_to_be_torn() {
        install().unwrap();
        // SAFETY: a new file.
        let raw = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        file::set_len(raw, 2 * PAGE_SIZE as u64).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of that file.
        let base = unsafe { mem::mmap(0, 2 * PAGE_SIZE, prot, libc::MAP_SHARED, raw, 0) }.unwrap();
        let guard = Guard::over(base, 2 * PAGE_SIZE).unwrap();
        // SAFETY: within the mapping, here and below.
        unsafe { ((base + PAGE_SIZE) as *mut u64).write_volatile(7) };
        assert!(!guard.is_torn());
        file::set_len(raw, PAGE_SIZE as u64).unwrap();
        // SAFETY: see above.
        assert_eq!(unsafe { ((base + PAGE_SIZE) as *const u64).read_volatile() }, 0);
        assert!(guard.is_torn());
        drop(guard);
        assert!(!Guard::over(base, 2 * PAGE_SIZE).unwrap().is_torn());
    }

    #[test]
    fn memory_that_is_not_guarded_ends_the_process() {
        // SAFETY: the child makes system calls alone, and touches one page.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; no core is to be left.
            unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
                let _ = install();
                let raw = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
                let base = mem::mmap(0, PAGE_SIZE, libc::PROT_READ, libc::MAP_SHARED, raw, 0).unwrap_or(0);
                (base as *const u64).read_volatile();
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status}");
    }
}
