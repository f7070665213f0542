//! Threads that are traced (ptrace(2)): what one has come to, and how it goes on.
//!
//! With the kernel's own numbers of signals, real-time ones among them: who could not name one would have eaten it.

use crate::{syscall, Result};

/// What a thread has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing new (only with `WNOHANG`).
    Nothing,
    /// It has ended with this status.
    Exited(i32),
    /// This signal has ended it.
    Killed(i32),
    /// It is stopped at the beginning or the end of a system call (`PTRACE_O_TRACESYSGOOD`).
    Call,
    /// It is stopped for an event (`PTRACE_EVENT_*`), by this signal's number.
    Event(i32, i32),
    /// It is stopped before it gets this signal.
    Signal(i32),
}

/// Waits for a traced thread, with these flags of waitpid(2) and `__WALL`.
///
/// # Errors
/// `EINTR`, and `ECHILD` where it is nobody's to wait for.
pub fn wait(thread: i32, flags: i32) -> Result<Seen> {
    let mut status = 0i32;
    let flags = flags | libc::__WALL;
    // SAFETY: the kernel writes one number.
    let found = unsafe { syscall!(wait4, thread, &raw mut status as usize, flags, 0) }?;
    Ok(if found == 0 {
        Seen::Nothing
    } else if libc::WIFEXITED(status) {
        Seen::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Seen::Killed(libc::WTERMSIG(status))
    } else if !libc::WIFSTOPPED(status) {
        Seen::Nothing
    } else {
        match (status >> 16, libc::WSTOPSIG(status)) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => Seen::Call,
            (0, signal) => Seen::Signal(signal),
            (event, signal) => Seen::Event(event, signal),
        }
    })
}

/// Lets a stopped thread go on by a request such as `PTRACE_CONT`, with a signal or 0.
///
/// # Errors
/// `ESRCH` where it is not stopped, or not traced by the caller.
pub fn go_on(thread: i32, request: u32, signal: i32) -> Result<()> {
    // SAFETY: the requests that let a thread go on take no memory of ours.
    unsafe { syscall!(ptrace, request, thread, 0, signal) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn a_real_time_signal_is_seen_and_reaches_the_thread() {
        // SAFETY: the child makes calls that are safe after a fork, and ends.
        unsafe {
            static GOT: core::sync::atomic::AtomicI32 = core::sync::atomic::AtomicI32::new(0);
            extern "C" fn handler(signal: i32) {
                GOT.store(signal, core::sync::atomic::Ordering::SeqCst);
            }
            let number = libc::SIGRTMIN() + 2;
            let child = libc::fork();
            if child == 0 {
                libc::signal(number, handler as extern "C" fn(i32) as usize);
                libc::ptrace(libc::PTRACE_TRACEME);
                libc::raise(libc::SIGSTOP);
                libc::raise(number);
                libc::_exit((GOT.load(core::sync::atomic::Ordering::SeqCst) != number) as i32);
            }
            assert_eq!(wait(child, 0), Ok(Seen::Signal(libc::SIGSTOP)));
            go_on(child, libc::PTRACE_CONT, 0).unwrap();
            assert_eq!(wait(child, 0), Ok(Seen::Signal(number)));
            go_on(child, libc::PTRACE_CONT, number).unwrap();
            assert_eq!(wait(child, 0), Ok(Seen::Exited(0)));
            assert_eq!(wait(child, 0), Err(Errno(libc::ECHILD)));
        }
    }
}
