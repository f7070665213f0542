//! Who tells whether a signal was for the launcher alone, or for its whole process group, which the program is in and has had it.
//!
//! The kernel does not say. So a process stands by in the group (and in its control group, for who sends to each process of that),
//! does nothing but wait for signals, and tells the launcher of each.
//!
//! Invariants: it has nothing open but its end of a pipe, and ends when the launcher has closed the other one, however that ends.

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a report may take. Who sends to a control group sends to one process after another.
const PATIENCE: Duration = Duration::from_millis(20);

/// The process, as long as the launcher waits for the program.
#[derive(Debug)]
pub struct Witness {
    #[cfg(test)]
    pid: i32,
    reports: OwnedFd,
    /// How often it has told of each signal, without the launcher having seen it.
    heard: [u32; 65],
}

impl Witness {
    /// Has one stand by. `None` where there can be none: then it is not told apart who a signal was for.
    pub fn start() -> Option<Witness> {
        let mut ends = [0; 2];
        // SAFETY: two numbers; the kernel just made the descriptors for us.
        let (reports, ours) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // SAFETY: the child makes system calls alone, and never returns.
        let child = match unsafe { libc::fork() } {
            // SAFETY: this is the child, and its child, which stands by. Who looks at the launcher's children finds the program.
            0 => unsafe {
                match libc::fork() {
                    0 => stand_by(ours.as_raw_fd()),
                    _ => libc::_exit(0),
                }
            },
            -1 => return None,
            child => child,
        };
        drop(ours);
        // SAFETY: our own child, which nobody else waits for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        // It says who it is once it is ready; where it could not be made nobody has the other end.
        let mut pid = [0; 4];
        if nix::unistd::read(&reports, &mut pid) != Ok(pid.len()) {
            return None;
        }
        nix::fcntl::fcntl(&reports, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).ok()?;
        Some(Witness {
            #[cfg(test)]
            pid: i32::from_ne_bytes(pid),
            reports,
            heard: [0; 65],
        })
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

/// The life of who stands by: until nobody has the other end of the pipe any more.
///
/// # Safety
/// To be called in a child that has just been forked.
unsafe fn stand_by(reports: i32) -> ! {
    // SAFETY: system calls that are safe after a fork, with memory of this function's.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"memfold-witness".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        if reports > 0 {
            libc::syscall(libc::SYS_close_range, 0, reports - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, reports + 1, u32::MAX, 0);
        let signals = libc::signalfd(-1, &raw const all, libc::SFD_NONBLOCK);
        let pid = libc::getpid();
        libc::write(reports, (&raw const pid).cast(), 4);
        loop {
            let mut ends = [
                libc::pollfd { fd: reports, events: 0, revents: 0 },
                libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 },
            ];
            libc::poll(ends.as_mut_ptr(), 2, -1);
            if ends[0].revents != 0 || signals < 0 {
                libc::_exit(0);
            }
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let len = size_of::<libc::signalfd_siginfo>();
            while libc::read(signals, (&raw mut info).cast(), len) == len as isize {
                // What the kernel sends, a terminal's keys among it, the launcher tells by itself.
                if info.ssi_code <= 0 {
                    let signal = info.ssi_signo as u8;
                    libc::write(reports, (&raw const signal).cast(), 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_it_was_sent_is_told_once_and_others_are_not() {
        let mut witness = Witness::start().unwrap();
        assert!(!witness.has_heard(libc::SIGUSR1));
        // SAFETY: our own process.
        unsafe { libc::kill(witness.pid, libc::SIGUSR1) };
        // It may take a while on a busy machine.
        assert!((0..3000).any(|_| witness.has_heard(libc::SIGUSR1)));
        assert!(!witness.has_heard(libc::SIGUSR1) && !witness.has_heard(libc::SIGTERM));
    }
}
