//! A thread of another process that is stopped for a moment, and makes system calls for us.
//!
//! It is seized and interrupted, never signalled. Its signals are blocked while it is ours, so that none reaches it in the midst of a call of ours; then
//! it has its registers again as they were, those of an interrupted system call among them, from which the kernel sees to the restarting by itself,
//! and its signal mask. System calls touch no registers for floating point.
//!
//! Nothing is single-stepped: the trap of a step is forced on the thread, and what a process does at `SIGTRAP` is undone where that is blocked or ignored.
//!
//! A few calls the kernel does not restart, but ends with `EINTR` (signal(7)), also when there was no signal. Those are made again from the beginning, unless there is a
//! signal for the thread, which is what ends them then.
//!
//! Invariants: a thread that has registers of ours is the business of a process that nothing ends but `SIGKILL` to itself ([`hand`]); it gets its own back in
//! a stop in which the kernel looks at what is to be restarted.

use crate::error::Trouble;
use crate::memory::Memory;
use crate::{hand, rseq, threads, Error};
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
/// How long all may take: the process can have a thread wait in a call of ours for as long as it wants.
const ALL: Duration = Duration::from_secs(20);
/// How often a call is made that the kernel wants to be made again.
const AGAIN: u32 = 100;
/// What a call returns that is to be made again, which no program sees (include/linux/errno.h).
const RESTARTED: std::ops::RangeInclusive<i64> = -516..=-512;
/// Requests that `nix` does not have (linux/ptrace.h).
const GETSIGMASK: libc::c_int = 0x420A;
const SETSIGMASK: libc::c_int = 0x420B;
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_int = 0x4210;
/// The stop that an interruption makes (linux/ptrace.h).
const EVENT_STOP: libc::c_int = 128;

/// See the module.
pub struct Stopped<'a> {
    memory: &'a Memory,
    thread: Pid,
    /// Where there is an instruction for system calls.
    syscall: usize,
    registers: libc::user_regs_struct,
    signal_mask: u64,
    since: Instant,
    /// It has made a call, and is stopped at the end of that.
    has_called: bool,
    /// It runs again.
    released: bool,
}

impl Stopped<'_> {
    /// Stops a thread of the process, one for which it makes least difference, for as long as `work` takes. What that returns, and for how long the thread was
    /// stopped.
    ///
    /// A thread that was interrupted and did not stop in time is let go by the kernel when the process ends that does all this: its tracer is gone.
    pub fn during<R: Copy>(
        memory: &Memory,
        work: impl FnOnce(&mut Stopped<'_>) -> Result<R, Trouble>,
    ) -> Result<(R, Duration), Error> {
        let syscall = memory.find_syscall()?;
        let apart = hand::do_apart(ALL, || {
            be_quick();
            let mut stopped = Stopped::any_of(memory, syscall)?;
            let result = work(&mut stopped);
            stopped.release();
            Ok((result?, stopped.since.elapsed()))
        });
        match apart {
            Ok(Some(done)) => done.map_err(|trouble: Trouble| trouble.of(memory.pid())),
            Ok(None) => Err(Error::Busy(memory.pid())),
            Err(errno) => Err(Error::Call { pid: std::process::id(), call: "fork", errno }),
        }
    }

    fn any_of(memory: &Memory, syscall: usize) -> Result<Stopped<'_>, Trouble> {
        let began = Instant::now();
        let mut late: Vec<u32> = Vec::new();
        loop {
            let mut found = threads::candidates(memory.pid())?;
            found.sort_by_key(|candidate| candidate.rank);
            for tid in
                late.iter().copied().chain(found.iter().map(|candidate| candidate.tid)).collect::<Vec<_>>()
            {
                let first = !late.contains(&tid);
                if let Some(stopped) = Stopped::one(memory, tid, first, syscall)? {
                    return Ok(stopped);
                }
                if first {
                    late.push(tid);
                }
            }
            if began.elapsed() > ANY {
                return Err(threads::what_keeps_all(memory.pid()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops that thread, if it can be at the moment. `first` says that it was not interrupted yet.
    fn one(memory: &Memory, tid: u32, first: bool, syscall: usize) -> Result<Option<Stopped<'_>>, Trouble> {
        let thread = Pid::from_raw(tid as i32);
        let since = Instant::now();
        if first {
            match ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
                Ok(()) => {}
                // It has ended, or somebody else traces it.
                Err(Errno::ESRCH) => return Ok(None),
                Err(_) if !threads::is_ours(memory.pid(), tid) => return Ok(None),
                Err(errno) => return Err(Trouble::Forbidden(errno)),
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
        // It may have set a filter a moment ago. And it must be the memory that is meant.
        if !threads::is_ours(memory.pid(), tid) || dispatches_calls(thread) {
            let _ = ptrace::detach(thread, None);
            return Ok(None);
        }
        memory.read(syscall, &mut [0]).map_err(|_| Trouble::Ended)?;
        let mut stopped = Stopped {
            memory,
            thread,
            syscall,
            registers,
            signal_mask: 0,
            since,
            has_called: false,
            released: false,
        };
        if let Some(aborts_at) = rseq::leave(memory, thread, registers.rip) {
            stopped.registers.rip = aborts_at;
        }
        stopped.signal_mask = stopped.read_mask()?;
        stopped.write_mask(u64::MAX)?;
        Ok(Some(stopped))
    }

    /// Makes a system call.
    pub fn call(&mut self, name: &'static str, number: i64, arguments: [usize; 6]) -> Result<usize, Trouble> {
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
    ) -> Result<usize, Trouble> {
        let failed = |errno| Trouble::Call(name, errno);
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
        self.has_called = true;
        for _ in 0..AGAIN {
            ptrace::setregs(self.thread, registers).map_err(failed)?;
            // To its beginning, and to its end.
            for _ in 0..2 {
                ptrace::syscall(self.thread, None).map_err(failed)?;
                self.reach(name, |status| matches!(status, WaitStatus::PtraceSyscall(_)))?;
            }
            let after = ptrace::getregs(self.thread).map_err(failed)?;
            if after.rip != instruction as u64 + 2 {
                return Err(failed(Errno::EINTR));
            }
            match after.rax as i64 {
                error if RESTARTED.contains(&error) => {}
                error @ -4095..0 => return Err(failed(Errno::from_raw(-error as i32))),
                value => return Ok(value as usize),
            }
        }
        Err(failed(Errno::EINTR))
    }

    /// Waits for a stop of ours. What stops it meanwhile (`SIGSTOP` cannot be blocked) gets its effect, and waits until we are gone.
    fn reach(&mut self, what: &'static str, is_there: impl Fn(WaitStatus) -> bool) -> Result<(), Trouble> {
        let failed = |errno| Trouble::Call(what, errno);
        loop {
            match waitpid(self.thread, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                    self.released = true;
                    return Err(Trouble::Ended);
                }
                Ok(status) if is_there(status) => return Ok(()),
                Ok(WaitStatus::Stopped(_, signal)) => ptrace::syscall(self.thread, signal).map_err(failed)?,
                Ok(_) => ptrace::syscall(self.thread, None).map_err(failed)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    fn read_mask(&self) -> Result<u64, Trouble> {
        let mut mask = 0u64;
        // SAFETY: the kernel writes so many bytes.
        let done =
            unsafe { libc::ptrace(GETSIGMASK as _, self.thread.as_raw(), size_of::<u64>(), &raw mut mask) };
        self.checked(done).map(|()| mask)
    }

    fn write_mask(&self, mask: u64) -> Result<(), Trouble> {
        // SAFETY: the kernel reads so many bytes.
        let done =
            unsafe { libc::ptrace(SETSIGMASK as _, self.thread.as_raw(), size_of::<u64>(), &raw const mask) };
        self.checked(done)
    }

    fn checked(&self, done: libc::c_long) -> Result<(), Trouble> {
        match done {
            -1 => Err(Trouble::Call("ptrace", Errno::last())),
            _ => Ok(()),
        }
    }

    /// Lets the thread go on as if nothing had been.
    fn release(&mut self) {
        if self.released {
            return;
        }
        // At the end of a call the kernel does not look at what is to be restarted; in the stop of an interruption it does.
        if self.has_called
            && ptrace::interrupt(self.thread).is_ok()
            && ptrace::cont(self.thread, None).is_ok()
        {
            let there = |status| matches!(status, WaitStatus::PtraceEvent(_, _, EVENT_STOP));
            let _ = self.reach("ptrace", there);
        }
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut registers = self.registers;
        if planted(Bug::RegisterNotRestored) {
            registers.r12 = 0;
        }
        let (pid, tid) = (self.memory.pid(), self.thread.as_raw() as u32);
        if !planted(Bug::CallNotMadeAgain)
            && threads::is_ended_by_interruption(&registers, |fd| threads::is_socket(tid, fd))
            && !threads::has_signal(pid, tid, self.signal_mask)
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

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

impl Trouble {
    /// The error that it is, of that process.
    fn of(self, pid: u32) -> Error {
        match self {
            Trouble::Ended => Error::Ended(pid),
            Trouble::Busy => Error::Busy(pid),
            Trouble::Suspended => Error::Suspended(pid),
            Trouble::Filtered => Error::Filtered(pid),
            Trouble::Forbidden(errno) => threads::forbidden(pid, errno),
            Trouble::Call(call, errno) => Error::Call { pid, call, errno },
        }
    }
}

/// Whether the thread has its system calls made by a handler of its own (prctl(2), `PR_SET_SYSCALL_USER_DISPATCH`): ours would end there.
fn dispatches_calls(thread: Pid) -> bool {
    /// `struct ptrace_sud_config` (linux/ptrace.h).
    #[repr(C)]
    #[derive(Default)]
    struct Config {
        mode: u64,
        selector: u64,
        offset: u64,
        len: u64,
    }
    let mut config = Config::default();
    // SAFETY: the kernel writes so many bytes, or none where it does not know the request.
    let done = unsafe {
        libc::ptrace(
            GET_SYSCALL_USER_DISPATCH_CONFIG as _,
            thread.as_raw(),
            size_of::<Config>(),
            &raw mut config,
        )
    };
    done == 0 && config.mode != 0
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
