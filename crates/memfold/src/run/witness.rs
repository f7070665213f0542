//! Who tells whether a signal was for the launcher alone, or for its whole process group, which the program is in and has had it.
//!
//! The kernel does not say. So a child of the launcher's stands by in the group (and in its control group, for who sends to each process of that),
//! does nothing but wait for signals, and tells the launcher of each.
//!
//! Invariants: it has nothing open but its end of a pipe, and the kernel ends it with the launcher.

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a report may take. Who sends to a control group sends to one process after another.
const PATIENCE: Duration = Duration::from_millis(20);

/// The child, as long as the launcher waits for the program.
#[derive(Debug)]
pub struct Witness {
    pid: i32,
    reports: OwnedFd,
    /// How often it has told of each signal, without the launcher having seen it.
    heard: [u32; 65],
}

impl Witness {
    /// Has one stand by. `None` where there can be none: then it is not told apart who a signal was for.
    pub fn start() -> Option<Witness> {
        let (mut ends, launcher) = ([0; 2], std::process::id() as i32);
        // SAFETY: two numbers; the kernel just made the descriptors for us.
        let (reports, ours) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: the child makes system calls alone, and never returns.
        match unsafe { libc::fork() } {
            // SAFETY: this is the child.
            0 => unsafe { stand_by(launcher, ours.as_raw_fd()) },
            -1 => None,
            pid => Some(Witness { pid, reports, heard: [0; 65] }),
        }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has had this signal, too.
    pub fn has_heard(&mut self, signal: i32) -> bool {
        let Some(place) = usize::try_from(signal).ok().filter(|&place| place < self.heard.len()) else {
            return false;
        };
        let began = Instant::now();
        loop {
            self.listen();
            if self.heard[place] > 0 {
                // Of ordinary signals the launcher may have been given one for several.
                self.heard[place] = if signal >= libc::SIGRTMIN() { self.heard[place] - 1 } else { 0 };
                return true;
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            if left.is_zero()
                || poll(&mut [PollFd::new(self.reports.as_fd(), PollFlags::POLLIN)], timeout) == Ok(0)
            {
                return false;
            }
        }
    }

    fn listen(&mut self) {
        let mut told = [0u8; 64];
        while let Ok(len @ 1..) = nix::unistd::read(&self.reports, &mut told) {
            for &signal in &told[..len] {
                if let Some(heard) = self.heard.get_mut(usize::from(signal)) {
                    *heard += 1;
                }
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: our own child, which nobody else waits for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The child's life.
///
/// # Safety
/// To be called in a child that has just been forked.
unsafe fn stand_by(launcher: i32, reports: i32) -> ! {
    // SAFETY: system calls that are safe after a fork, with memory of this function's.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"memfold-witness".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        if reports > 0 {
            libc::syscall(libc::SYS_close_range, 0, reports - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, reports + 1, u32::MAX, 0);
        while libc::getppid() == launcher {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&raw const all, &raw mut info);
            // What the kernel sends, a terminal's keys among it, the launcher tells by itself.
            if signal > 0 && info.si_code <= 0 {
                libc::write(reports, (&raw const signal).cast(), 1);
            }
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_it_was_sent_is_told_once_and_others_are_not() {
        let mut witness = Witness::start().unwrap();
        assert!(!witness.has_heard(libc::SIGUSR1));
        // SAFETY: our own child.
        unsafe { libc::kill(witness.pid(), libc::SIGUSR1) };
        // It may take a while on a busy machine.
        assert!((0..3000).any(|_| witness.has_heard(libc::SIGUSR1)));
        assert!(!witness.has_heard(libc::SIGUSR1) && !witness.has_heard(libc::SIGTERM));
    }
}
