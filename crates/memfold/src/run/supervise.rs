//! Waiting for a program and passing on the signals that were meant for it.
//!
//! The program stays in the launcher's process group, so what the terminal sends (Ctrl-C, Ctrl-Z, a
//! resized window) reaches it without help. Only signals that another process sent to the launcher alone are
//! passed on: the kernel marks its own with `SI_KERNEL` (sigaction(2)), and those that went to the whole group the [`Witness`] has had, too. Of the
//! kernel's own those are passed on that only the launcher gets: the hang-up of a terminal, which the session's leader is told, and an alarm that
//! was set before it was executed.
//!
//! As process 1 of a container it waits for orphans as well.
//!
//! Invariants: the program starts with the signal mask that the launcher was started with; the launcher
//! ends after the program and through no signal that the program survives.

use super::footprint::Footprint;
use super::inherited;
use super::witness::Witness;
use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl End {
    /// The exit code that a shell reports: 128 and the signal's number for a program that was killed.
    pub fn code(self) -> u8 {
        match self {
            End::Exited(code) => code,
            End::Killed(signal) => (128 + signal) as u8,
        }
    }
}

/// A program that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// Whether the terminal interrupted the launcher too, in which case it should die as the program did
    /// so that a script around it stops.
    pub interrupted: bool,
}

/// Signals that stop a process from the terminal.
const TERMINAL_STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// `si_code` of a signal that the kernel sent.
const SI_KERNEL: i32 = 0x80;

/// Processes of the launcher's own, which it waits for by itself.
static OWN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Says that this child is the launcher's own.
pub fn keep(pid: u32) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).push(pid as i32);
}

/// A running program.
struct Child {
    pid: i32,
    interrupted: bool,
    /// The terminal stopped the launcher's group, which has not been continued since.
    stopped_by_terminal: bool,
    witness: Option<Witness>,
}

/// Starts the command and stays until it ends, calling `tick` with its process every `interval`.
///
/// # Errors
/// The command cannot be started; the error is the `io::Error` of `Command::spawn`.
pub fn supervise(
    mut command: Command,
    interval: Duration,
    mut tick: impl FnMut(u32),
) -> anyhow::Result<Ended> {
    let waited = waited_signals();
    // SAFETY: sets a disposition, no handler. A launcher that was started with SIGCHLD ignored could not
    // learn how the program ended.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, nix::sys::signal::SigHandler::SigDfl) }?;
    let before = waited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let signals = SignalFd::with_flags(&waited, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // SAFETY: pthread_sigmask is async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || {
            inherited::restore();
            before.thread_set_mask().map_err(Into::into)
        })
    };
    let pid = command.spawn()?.id() as i32;
    // After the program, for which there may be just descriptors enough.
    let mut child = Child { pid, interrupted: false, stopped_by_terminal: false, witness: Witness::start() };
    let is_first = std::process::id() == 1;
    let mut footprint = Footprint::new();
    let timeout = PollTimeout::try_from(interval).context("the interval is too long")?;
    loop {
        match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        while let Some(info) = signals.read_signal()? {
            child.on_signal(info.ssi_signo as i32, info.ssi_code, info.ssi_pid as i32);
        }
        tick(child.pid as u32);
        footprint.look();
        if let Some(end) = child.reap()? {
            return Ok(Ended { end, interrupted: child.interrupted });
        }
        if is_first {
            child.reap_orphans();
        }
    }
}

/// Every signal but those that report a fault of the launcher's own and those that stop a background
/// process at the terminal.
fn waited_signals() -> SigSet {
    let mut set = SigSet::all();
    use Signal::*;
    for own in [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGTTIN, SIGTTOU] {
        set.remove(own);
    }
    set
}

impl Child {
    fn on_signal(&mut self, signal: i32, code: i32, sender: i32) {
        let from_kernel = code == SI_KERNEL;
        if matches!(signal, libc::SIGCHLD | libc::SIGPIPE) {
            return;
        }
        // Asked of each that the witness may have had: what it is not asked of it would say of the next.
        let had_by_all = code <= 0 && self.witness.as_mut().is_some_and(|witness| witness.has_heard(signal));
        match signal {
            libc::SIGCONT => self.stopped_by_terminal = false,
            // Where the program was stopped before the launcher could hear of it.
            libc::SIGTSTP if from_kernel || had_by_all => {
                self.stopped_by_terminal = true;
                if self.is_stopped() {
                    self.stop_as_well(signal);
                }
            }
            _ => {}
        }
        match signal {
            libc::SIGCONT if !self.is_stopped() => {}
            libc::SIGINT | libc::SIGQUIT if from_kernel => self.interrupted = true,
            libc::SIGALRM if from_kernel => self.send(signal),
            libc::SIGHUP if from_kernel && leads_session() => self.send(signal),
            // The terminal reaches the program by itself, and so does what it sends to its whole group.
            // What our own writing raises is nobody else's either.
            _ if from_kernel || sender == self.pid || sender == std::process::id() as i32 => {}
            _ if had_by_all => {}
            _ => self.send(signal),
        }
    }

    /// Takes what other processes left behind that have ended, and that nobody else waits for.
    fn reap_orphans(&self) {
        loop {
            // SAFETY: plain words; the structure is valid, and nothing is taken.
            let found = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                if libc::waitid(libc::P_ALL, 0, &mut info, options) != 0 {
                    return;
                }
                info.si_pid()
            };
            let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
            if [0, self.pid].contains(&found) || own.contains(&found) {
                return;
            }
            // SAFETY: it is a child that has ended, and nobody of ours waits for it.
            unsafe { libc::waitpid(found, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }

    fn send(&self, signal: i32) {
        // SAFETY: the child is not reaped yet, so the number is still its own.
        unsafe { libc::kill(self.pid, signal) };
    }

    fn is_stopped(&self) -> bool {
        crate::process::stat(self.pid as u32).is_some_and(|s| s.state == 'T')
    }

    /// Whether there is something to wait for that is ours: not a stop for who traces the child, as a thread of ours does that attaches to it. That thread
    /// waits for it, and to the kernel any thread of this process may take it.
    fn has_news(&self) -> bool {
        // SAFETY: plain words; the structure is valid, and nothing is taken.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
            let done = libc::waitid(libc::P_PID, self.pid as u32, &mut info, options);
            done != 0 || info.si_pid() != 0 && info.si_code != libc::CLD_TRAPPED
        }
    }

    /// Learns whether the program ended. If the terminal stopped it, the launcher stops with it, so that
    /// the shell takes the terminal back.
    fn reap(&self) -> anyhow::Result<Option<End>> {
        let mut status = 0;
        loop {
            if !self.has_news() {
                return Ok(None);
            }
            // SAFETY: `status` is valid; the child is ours.
            match unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
                0 => return Ok(None),
                -1 if Errno::last() == Errno::EINTR => {}
                -1 => return Err(Errno::last()).context("cannot wait for the program"),
                _ if libc::WIFEXITED(status) => {
                    return Ok(Some(End::Exited(libc::WEXITSTATUS(status) as u8)))
                }
                _ if libc::WIFSIGNALED(status) => return Ok(Some(End::Killed(libc::WTERMSIG(status)))),
                _ => self.stop_as_well(libc::WSTOPSIG(status)),
            }
        }
    }

    /// The program has stopped by this signal. The launcher does, too, where a shell waits for it: it leads a job of a shell's own, or the terminal has stopped all of the group.
    /// In a script nobody but the program may be continued, and then the launcher would be left as it is for ever.
    fn stop_as_well(&self, signal: i32) {
        let is_job = nix::unistd::getpgrp() == nix::unistd::getpid();
        let stops = TERMINAL_STOPS.contains(&signal) && (is_job || self.stopped_by_terminal) && has_terminal()
            // As some programs stop themselves when they are asked to.
            || signal == libc::SIGSTOP && is_job && is_in_foreground();
        if stops {
            let _ = nix::sys::signal::raise(Signal::SIGSTOP);
        }
    }
}

fn leads_session() -> bool {
    nix::unistd::getsid(None) == Ok(nix::unistd::getpid())
}

/// Whether the shell waits for this process at a terminal.
fn is_in_foreground() -> bool {
    std::fs::File::open("/dev/tty")
        .is_ok_and(|terminal| nix::unistd::tcgetpgrp(&terminal) == Ok(nix::unistd::getpgrp()))
}

fn has_terminal() -> bool {
    std::io::stdin().is_terminal() || std::fs::File::open("/dev/tty").is_ok()
}

/// Ends this process as a signal from the terminal would, without leaving a core file of its own.
pub fn die_of(signal: i32) {
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    let Ok(signal) = Signal::try_from(signal) else { return };
    // SAFETY: sets a disposition, no handler.
    let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) };
    let mut set = SigSet::empty();
    set.add(signal);
    let _ = set.thread_unblock();
    let _ = nix::sys::signal::raise(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Ended {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        supervise(command, Duration::from_millis(20), |_| {}).unwrap()
    }

    #[test]
    fn an_exit_code_and_a_fatal_signal_come_back() {
        assert_eq!(shell("exit 7").end, End::Exited(7));
        assert_eq!(shell("kill -KILL $$").end, End::Killed(9));
        assert_eq!(End::Killed(9).code(), 137);
    }

    #[test]
    fn the_program_starts_with_the_signal_mask_of_its_launcher() {
        let mask = |script| shell(script).end;
        assert_eq!(mask("grep -q '^SigBlk:.0*$' /proc/self/status"), End::Exited(0));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error() {
        let error = supervise(Command::new("/nonexistent"), Duration::from_millis(20), |_| {}).unwrap_err();
        assert_eq!(error.downcast_ref::<std::io::Error>().unwrap().kind(), std::io::ErrorKind::NotFound);
    }
}
