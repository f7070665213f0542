//! Who tells whether a signal was for the launcher alone, or for its whole process group, which the program is in and has had it.
//!
//! The kernel does not say. So a process stands by in the group (and in its control group, for who sends to each process of that),
//! does nothing but wait for signals, and tells the launcher of each.
//!
//! Invariants: it has nothing open but its end of a pipe and a signalfd; it is a child that nobody but the witness's owner waits for, and it is gone when that is
//! dropped, or soon after the launcher was killed. Nothing of it is called as the launcher is: who looks for that by its name finds the launcher alone.

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the sender may take from one process to the next: who sends to a control group sends to one after the other.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long an answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(1);
/// What was told for so long without the launcher having had it will not come: it was for others than the launcher.
const STALE: Duration = Duration::from_secs(1);
/// What the launcher asks by. Of all signals that wait the kernel gives this one last.
const QUESTION: i32 = 64;
/// The answer, on the pipe.
const HERE: u8 = 0;

/// The process, as long as the launcher waits for the program.
#[derive(Debug)]
pub struct Witness {
    pid: i32,
    reports: OwnedFd,
    /// How often it has told of each signal, without the launcher having seen it, and when it did last.
    heard: [(u32, Option<Instant>); QUESTION as usize + 1],
    /// It has said that it has told of all that it had.
    is_up_to_date: bool,
    is_gone: bool,
}

impl Witness {
    /// Has one stand by. `None` where there can be none: then it is not told apart who a signal was for.
    pub fn start() -> Option<Witness> {
        let arguments = crate::process::arguments_in_memory();
        let mut ends = [0; 2];
        // SAFETY: two numbers; the kernel just made the descriptors for us.
        let (reports, ours) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        // Without a signal at its end it is nobody's who waits for just any child.
        // SAFETY: the child makes system calls alone, and never returns.
        let pid = match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
            // SAFETY: this is the child.
            0 => unsafe { stand_by(ours.as_raw_fd(), reports.as_raw_fd(), arguments) },
            -1 => return None,
            pid => pid as i32,
        };
        drop(ours);
        let witness = Witness {
            pid,
            reports,
            heard: [(0, None); QUESTION as usize + 1],
            is_up_to_date: false,
            is_gone: false,
        };
        // It says that it is ready; where it cannot be, it ends.
        let mut ready = [0; 1];
        if nix::unistd::read(&witness.reports, &mut ready) != Ok(1) {
            return None;
        }
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&witness.reports, flags).ok().map(|_| witness)
    }

    /// Whether it has had this signal, too, which the launcher has had now. To be asked of every one that the launcher has had and others may have sent: what is not asked for
    /// is taken for the next.
    pub fn has_heard(&mut self, signal: i32) -> bool {
        self.wait(PATIENCE, |witness| witness.take(signal)) || {
            self.ask();
            self.wait(ANSWER, |witness| witness.is_up_to_date);
            self.take(signal)
        }
    }

    /// Takes what it was told of a signal, if it was.
    fn take(&mut self, signal: i32) -> bool {
        let Some((count, last)) = usize::try_from(signal).ok().and_then(|place| self.heard.get_mut(place))
        else {
            return false;
        };
        if *count == 0 || last.is_none_or(|last| last.elapsed() > STALE) {
            *count = 0;
            return false;
        }
        // Of ordinary signals the launcher may have been given one for several.
        *count = if signal >= libc::SIGRTMIN() { *count - 1 } else { 0 };
        true
    }

    /// Has it say when it has told of all that it had.
    fn ask(&mut self) {
        self.is_up_to_date = false;
        // Who stopped the group has stopped it, too.
        for signal in [libc::SIGCONT, QUESTION] {
            // SAFETY: our own child, which nobody has waited for.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Listens until it is so, for so long at most. Whether it is.
    fn wait(&mut self, most: Duration, mut is_so: impl FnMut(&mut Witness) -> bool) -> bool {
        let began = Instant::now();
        loop {
            self.listen();
            if is_so(self) {
                return true;
            }
            let left = most.saturating_sub(began.elapsed());
            if left.is_zero() || self.is_gone {
                return false;
            }
            // One more, as less than a millisecond is none.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
            let _ = poll(&mut [PollFd::new(self.reports.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    fn listen(&mut self) {
        let mut told = [0u8; 64];
        loop {
            match nix::unistd::read(&self.reports, &mut told) {
                Ok(0) => self.is_gone = true,
                Err(Errno::EINTR) => continue,
                Err(_) => {}
                Ok(len) => {
                    for &signal in &told[..len] {
                        match self.heard.get_mut(usize::from(signal)) {
                            Some(_) if signal == HERE => self.is_up_to_date = true,
                            Some((count, last)) => (*count, *last) = (*count + 1, Some(Instant::now())),
                            None => {}
                        }
                    }
                    continue;
                }
            }
            return;
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: our own child, which nobody else waits for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) == -1
                && Errno::last() == Errno::EINTR
            {}
        }
    }
}

/// The life of who stands by: until nobody has the other end of the pipe any more.
///
/// # Safety
/// To be called in a child that has just been forked. `arguments` is where the words of its command line lie, which nobody reads any more, or `None`.
unsafe fn stand_by(reports: i32, others: i32, arguments: Option<(usize, usize)>) -> ! {
    // SAFETY: system calls that are safe after a fork, with memory of this function's and that of the arguments.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"witness".as_ptr());
        if let Some((start, len)) = arguments {
            core::ptr::write_bytes(start as *mut u8, 0, len);
            let name = b"witness";
            core::ptr::copy_nonoverlapping(
                name.as_ptr(),
                start as *mut u8,
                name.len().min(len.saturating_sub(1)),
            );
        }
        // Nor is it found by its executable, but by root.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        // By themselves, as a sandbox may not permit the other way. Who reads what the program writes must see its end, and the launcher's must be seen here.
        for fd in [0, 1, 2, others] {
            if fd != reports {
                libc::close(fd);
            }
        }
        let below = if reports > 0 { libc::syscall(libc::SYS_close_range, 0, reports - 1, 0) } else { 0 };
        if below != 0 || libc::syscall(libc::SYS_close_range, reports + 1, u32::MAX, 0) != 0 {
            libc::_exit(0);
        }
        let signals = libc::signalfd(-1, &raw const all, libc::SFD_NONBLOCK);
        let launcher = libc::getppid() as u32;
        // Where nobody hears it any more, the signal of that would be the next to tell of.
        let tell = |signal: u8| {
            if libc::write(reports, (&raw const signal).cast(), 1) != 1 {
                libc::_exit(0);
            }
        };
        if signals < 0 {
            libc::_exit(0);
        }
        tell(HERE);
        loop {
            let mut ends = [
                libc::pollfd { fd: reports, events: 0, revents: 0 },
                libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 },
            ];
            libc::poll(ends.as_mut_ptr(), 2, -1);
            if ends[0].revents != 0 {
                libc::_exit(0);
            }
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let len = size_of::<libc::signalfd_siginfo>();
            while libc::read(signals, (&raw mut info).cast(), len) == len as isize {
                match info.ssi_code {
                    // What the kernel sends, a terminal's keys among it, the launcher tells by itself.
                    1.. => {}
                    _ if info.ssi_pid == launcher => {
                        if info.ssi_signo == QUESTION as u32 {
                            tell(HERE);
                        }
                    }
                    _ => tell(info.ssi_signo as u8),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends it a signal from another process, as a group gets it: what the launcher sends itself is for it alone.
    fn send(witness: &Witness, signal: i32) {
        let command = format!("kill -{signal} {}", witness.pid);
        assert!(std::process::Command::new("/bin/sh").args(["-c", &command]).status().unwrap().success());
    }

    #[test]
    fn a_signal_that_it_was_sent_is_told_once_and_others_are_not() {
        let mut witness = Witness::start().unwrap();
        assert!(!witness.has_heard(libc::SIGUSR1));
        send(&witness, libc::SIGUSR1);
        assert!(witness.has_heard(libc::SIGUSR1));
        assert!(!witness.has_heard(libc::SIGUSR1) && !witness.has_heard(libc::SIGTERM));
    }

    #[test]
    fn what_it_tells_late_is_waited_for_also_when_it_was_stopped() {
        let mut witness = Witness::start().unwrap();
        send(&witness, libc::SIGSTOP);
        send(&witness, libc::SIGUSR1);
        assert!(witness.has_heard(libc::SIGUSR1));
        assert!(!witness.has_heard(libc::SIGUSR1));
    }

    #[test]
    fn what_the_launcher_never_had_is_forgotten() {
        let mut witness = Witness::start().unwrap();
        send(&witness, libc::SIGUSR1);
        witness.ask();
        assert!(witness.wait(ANSWER * 60, |witness| witness.is_up_to_date));
        let (count, last) = &mut witness.heard[libc::SIGUSR1 as usize];
        assert_eq!(*count, 1);
        *last = last.and_then(|last| last.checked_sub(STALE * 2));
        assert!(!witness.has_heard(libc::SIGUSR1));
    }

    #[test]
    fn it_has_no_name_of_the_launchers_and_is_gone_with_its_owner() {
        let witness = Witness::start().unwrap();
        let pid = witness.pid;
        let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
        assert_eq!(read("comm").unwrap(), "witness\n");
        assert_eq!(read("cmdline").unwrap().trim_end_matches('\0'), "witness");
        drop(witness);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn it_ends_when_the_launcher_does_while_it_tells_of_signals() {
        use nix::fcntl::{fcntl, FcntlArg};
        const ROOM: i32 = 4096;
        let mut witness = Witness::start().unwrap();
        fcntl(&witness.reports, FcntlArg::F_SETPIPE_SZ(ROOM)).unwrap();
        // More than it can tell of before somebody hears it.
        let kill =
            format!("i=0; while [ $i -lt {} ]; do kill -40 {}; i=$((i + 1)); done", 2 * ROOM, witness.pid);
        assert!(std::process::Command::new("/bin/sh").args(["-c", &kill]).status().unwrap().success());
        let wait = |is_so: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < ANSWER * 60);
                std::thread::yield_now();
            }
        };
        let told = |reports: &OwnedFd| {
            let mut told = 0;
            // SAFETY: one number.
            assert_eq!(unsafe { libc::ioctl(reports.as_raw_fd(), libc::FIONREAD, &raw mut told) }, 0);
            told
        };
        wait(&|| told(&witness.reports) == ROOM);
        // As when the launcher is killed.
        witness.reports = std::fs::File::open("/dev/null").unwrap().into();
        let stat = format!("/proc/{}/stat", witness.pid);
        wait(&|| std::fs::read_to_string(&stat).unwrap().contains(") Z "));
    }

    #[test]
    fn one_that_is_killed_is_not_waited_for_at_every_signal() {
        let mut witness = Witness::start().unwrap();
        send(&witness, libc::SIGKILL);
        assert!(!witness.wait(ANSWER * 60, |_| false) && witness.is_gone);
        assert!(!witness.has_heard(libc::SIGUSR1));
    }
}
