//! A thread of another process that is stopped for a moment, and makes system calls for us.
//!
//! It is seized and interrupted, never signalled. Its signals are blocked while it is ours, so that none reaches it in the midst of a call of ours; then
//! it has its registers again as they were, those of an interrupted system call among them, from which the kernel sees to the restarting by itself,
//! and its signal mask. System calls touch no registers for floating point.
//!
//! A few calls the kernel does not restart, but ends with `EINTR` (signal(7)), also when there was no signal. Those are made again from the beginning, unless there is a
//! signal for the thread, which is what ends them then.

use crate::{memory, threads, Error, Target};
use memfold_pager::sabotage::{planted, Bug};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// How long one thread may take to stop, and how long it may take until any does.
const ONE: Duration = Duration::from_millis(100);
const ANY: Duration = Duration::from_secs(10);
/// Requests that `nix` does not have (linux/ptrace.h).
const GETSIGMASK: libc::c_int = 0x420A;
const SETSIGMASK: libc::c_int = 0x420B;
/// The stop that an interruption makes (linux/ptrace.h).
const EVENT_STOP: libc::c_int = 128;

/// See the module.
pub struct Stopped {
    target: u32,
    thread: Pid,
    /// Where there is an instruction for system calls.
    syscall: usize,
    registers: libc::user_regs_struct,
    signal_mask: u64,
    since: Instant,
    /// It runs again.
    released: bool,
}

impl Stopped {
    /// Stops a thread of the process, one for which it makes least difference, for as long as `work` takes. What that returns, and for how long the thread was
    /// stopped.
    ///
    /// All of it is done by a thread of our own that ends with it: a thread of the process that was interrupted and did not stop in time is let go by the
    /// kernel then, as its tracer is gone.
    pub fn during<R: Send>(
        target: &Target,
        work: impl FnOnce(&mut Stopped) -> Result<R, Error> + Send,
    ) -> Result<(R, Duration), Error> {
        let syscall = memory::find_syscall(target.pid())?;
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                be_quick();
                let mut stopped = Stopped::any_of(target, syscall)?;
                let result = work(&mut stopped);
                stopped.release();
                Ok((result?, stopped.since.elapsed()))
            });
            done.join().unwrap_or(Err(Error::Busy(target.pid())))
        })
    }

    fn any_of(target: &Target, syscall: usize) -> Result<Stopped, Error> {
        let began = Instant::now();
        let mut late: Vec<u32> = Vec::new();
        loop {
            let mut found = threads::candidates(target.pid())?;
            found.sort_by_key(|candidate| candidate.rank);
            for tid in
                late.iter().copied().chain(found.iter().map(|candidate| candidate.tid)).collect::<Vec<_>>()
            {
                let first = !late.contains(&tid);
                if let Some(stopped) = Stopped::one(target.pid(), tid, first, syscall)? {
                    return Ok(stopped);
                }
                if first {
                    late.push(tid);
                }
            }
            if began.elapsed() > ANY {
                return Err(Error::Busy(target.pid()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops that thread, if it can be at the moment. `first` says that it was not interrupted yet.
    fn one(target: u32, tid: u32, first: bool, syscall: usize) -> Result<Option<Stopped>, Error> {
        let thread = Pid::from_raw(tid as i32);
        let since = Instant::now();
        if first {
            match ptrace::seize(thread, ptrace::Options::empty()) {
                Ok(()) => {}
                // It has ended.
                Err(Errno::ESRCH) => return Ok(None),
                Err(errno) => return Err(threads::forbidden(target, errno)),
            }
            if ptrace::interrupt(thread).is_err() {
                return Ok(None);
            }
        }
        if !reach_stop(thread, if first { ONE } else { Duration::ZERO }) {
            return Ok(None);
        }
        let registers = match ptrace::getregs(thread) {
            Ok(registers) => registers,
            Err(_) => return Ok(None),
        };
        let mut stopped =
            Stopped { target, thread, syscall, registers, signal_mask: 0, since, released: false };
        stopped.signal_mask = stopped.read_mask()?;
        stopped.write_mask(u64::MAX)?;
        Ok(Some(stopped))
    }

    /// Makes a system call.
    pub fn call(&mut self, name: &'static str, number: i64, arguments: [usize; 6]) -> Result<usize, Error> {
        self.call_at(self.syscall, name, number, arguments, 0)
    }

    /// Makes a system call by the instruction at an address, with a word in `r12`.
    pub fn call_at(
        &mut self,
        instruction: usize,
        name: &'static str,
        number: i64,
        arguments: [usize; 6],
        word: usize,
    ) -> Result<usize, Error> {
        let failed = |errno| Error::Call { pid: self.target, call: name, errno };
        let [rdi, rsi, rdx, r10, r8, r9] = arguments.map(|argument| argument as u64);
        let registers = libc::user_regs_struct {
            rip: instruction as u64,
            rax: number as u64,
            // So that the kernel takes nothing of this for a system call that is to be restarted.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            r12: word as u64,
            ..self.registers
        };
        ptrace::setregs(self.thread, registers).map_err(failed)?;
        loop {
            ptrace::step(self.thread, None).map_err(failed)?;
            match waitpid(self.thread, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => break,
                // The process is being stopped (SIGSTOP), which waits until we are gone.
                Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)) => {}
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                    self.released = true;
                    return Err(Error::Ended(self.target));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        let after = ptrace::getregs(self.thread).map_err(failed)?;
        if after.rip != instruction as u64 + 2 {
            return Err(failed(Errno::EINTR));
        }
        match after.rax as i64 {
            error @ -4095..0 => Err(failed(Errno::from_raw(-error as i32))),
            value => Ok(value as usize),
        }
    }

    fn read_mask(&self) -> Result<u64, Error> {
        let mut mask = 0u64;
        // SAFETY: the kernel writes so many bytes.
        let done =
            unsafe { libc::ptrace(GETSIGMASK as _, self.thread.as_raw(), size_of::<u64>(), &raw mut mask) };
        self.checked(done).map(|()| mask)
    }

    fn write_mask(&self, mask: u64) -> Result<(), Error> {
        // SAFETY: the kernel reads so many bytes.
        let done =
            unsafe { libc::ptrace(SETSIGMASK as _, self.thread.as_raw(), size_of::<u64>(), &raw const mask) };
        self.checked(done)
    }

    fn checked(&self, done: libc::c_long) -> Result<(), Error> {
        match done {
            -1 => Err(Error::Call { pid: self.target, call: "ptrace", errno: Errno::last() }),
            _ => Ok(()),
        }
    }

    /// Lets the thread go on as if nothing had been.
    fn release(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut registers = self.registers;
        if planted(Bug::RegisterNotRestored) {
            registers.r12 = 0;
        }
        if !planted(Bug::CallNotMadeAgain)
            && threads::is_ended_by_interruption(&registers)
            && !threads::has_signal(self.target, self.thread.as_raw() as u32, self.signal_mask)
        {
            // The instruction is made again, with the number that the kernel has kept.
            registers.rip -= 2;
            registers.rax = registers.orig_rax;
            registers.orig_rax = u64::MAX;
        }
        let _ = ptrace::setregs(self.thread, registers);
        if !planted(Bug::MaskNotRestored) {
            let _ = self.write_mask(self.signal_mask);
        }
        let _ = ptrace::detach(self.thread, None);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.release();
    }
}

/// Has the calling thread, which is about to end, run before others, where that is permitted: a thread of the process waits for it.
fn be_quick() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: one structure; it changes how this thread is scheduled, and none that it makes.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &priority) };
}

/// Waits until the thread is stopped by our interruption. Signals that come before are passed on. False where it takes too long.
fn reach_stop(thread: Pid, patience: Duration) -> bool {
    let since = Instant::now();
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::PtraceEvent(_, Signal::SIGTRAP, EVENT_STOP)) => return true,
            // The process is being stopped.
            Ok(WaitStatus::PtraceEvent(..)) => {
                let _ = ptrace::detach(thread, None);
                return false;
            }
            Ok(WaitStatus::Stopped(_, signal)) => {
                let _ = ptrace::cont(thread, signal);
            }
            Ok(WaitStatus::StillAlive) => {
                if since.elapsed() >= patience {
                    return false;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}
