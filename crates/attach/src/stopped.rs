//! A thread of another process that is stopped for a moment, and makes system calls for us.
//!
//! It is seized and interrupted, never signalled. Its signals are blocked while it is ours, so that none reaches it in the midst of a call of ours; then
//! it has its registers again as they were, those of an interrupted system call among them, from which the kernel sees to the restarting by itself,
//! and its signal mask. System calls touch no registers for floating point.
//!
//! Nothing is single-stepped: the trap of a step is forced on the thread, and what a process does at `SIGTRAP` is undone where that is blocked or ignored.
//!
//! A few calls the kernel does not restart, but ends with `EINTR` (signal(7)), also when there was no signal. Those it is told to make again from the
//! beginning, unless it runs a handler, which is what ends them then.
//!
//! Invariants: a thread that has registers of ours is the business of a process that nothing ends but `SIGKILL` to itself ([`hand`]); it gets its own back in
//! a stop in which the kernel looks at what is to be restarted.

use crate::error::{self, Trouble, Unfit};
use crate::hand::{self, Late};
use crate::memory::Memory;
use crate::{rseq, threads, Error};
use memfold_pager::sabotage::{planted, Bug};
use memfold_sys::trace::{self, Seen};
use nix::errno::Errno;
use nix::sys::ptrace;
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
/// What makes the kernel make a call again, unless it runs a handler (`ERESTARTNOHAND`).
const RESTARTED_WITHOUT_HANDLER: i64 = -514;
/// The segment of 64-bit code.
const CODE: u64 = 0x33;
/// Flags that a program has set for its own code and not for ours, and that a thread inherits that is made meanwhile: traps of steps, the direction of
/// moves, nested tasks, traps of what is not aligned.
const OWN_FLAGS: u64 = 0x100 | 0x400 | 0x4000 | 0x4_0000;
/// Requests that `nix` does not have (linux/ptrace.h).
const GETSIGMASK: libc::c_int = 0x420A;
const SETSIGMASK: libc::c_int = 0x420B;
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_int = 0x4211;
/// The stop that an interruption makes (linux/ptrace.h).
const EVENT_STOP: libc::c_int = 128;

/// See the module.
pub struct Stopped {
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

impl Stopped {
    /// Stops a thread of the process, one for which it makes least difference, for as long as `work` takes. What that returns, and for how long the thread was
    /// stopped.
    ///
    /// A thread that was interrupted and did not stop in time is let go by the kernel when the process ends that does all this: its tracer is gone.
    ///
    /// After [`Error::Unfinished`] the work may still be under way.
    pub fn during<R: Copy>(
        memory: &Memory,
        work: impl FnOnce(&mut Stopped) -> Result<R, Trouble>,
    ) -> Result<(R, Duration), Error> {
        let syscall = memory.find_syscall()?;
        let apart = hand::do_apart([memory.number()], ALL, Late::GoesOn, || {
            be_quick();
            let mut stopped = Stopped::any_of(memory, syscall)?;
            let result = work(&mut stopped);
            stopped.release();
            Ok((result?, stopped.since.elapsed()))
        });
        match apart {
            Ok(Some(done)) => done.map_err(|trouble: Trouble| trouble.of(memory.pid())),
            Ok(None) => Err(Error::Unfinished(memory.pid())),
            Err(errno) => Err(Error::Call { pid: std::process::id(), call: "fork", errno }),
        }
    }

    fn any_of(memory: &Memory, syscall: usize) -> Result<Stopped, Trouble> {
        let began = Instant::now();
        // Those that are seized, and of these those that are interrupted.
        let (mut seized, mut late) = (Vec::<u32>::new(), Vec::<u32>::new());
        // Those that are not tried again, and why one last was not fit.
        let (mut spared, mut why) = (Vec::<u32>::new(), None);
        loop {
            let mut found = threads::candidates(memory.pid())?;
            found.sort_by_key(|candidate| candidate.rank);
            found.retain(|candidate| ![&seized, &spared].iter().any(|those| those.contains(&candidate.tid)));
            let tids = seized.iter().copied().chain(found.iter().map(|candidate| candidate.tid));
            for tid in tids.collect::<Vec<_>>() {
                let was = (seized.contains(&tid), late.contains(&tid));
                let tried = Stopped::one(memory, tid, was, syscall)?;
                seized.retain(|other| *other != tid);
                late.retain(|other| *other != tid);
                match tried {
                    Tried::Stopped(stopped) => return Ok(*stopped),
                    Tried::Late => {
                        seized.push(tid);
                        late.push(tid);
                    }
                    Tried::Seized => seized.push(tid),
                    Tried::LetGo => {}
                    Tried::Unfit(unfit, lasts) => {
                        why = Some(unfit);
                        spared.extend(lasts.then_some(tid));
                    }
                }
            }
            let are_spared = || threads::of_program(memory.pid()).iter().all(|tid| spared.contains(tid));
            let is_over = !spared.is_empty() && are_spared();
            if is_over || began.elapsed() > ANY {
                return Err(threads::what_keeps_all(memory.pid(), why));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops that thread, if it can be at the moment. Two words say whether it is seized already, and whether it is interrupted.
    fn one(
        memory: &Memory,
        tid: u32,
        (seized, interrupted): (bool, bool),
        syscall: usize,
    ) -> Result<Tried, Trouble> {
        let thread = Pid::from_raw(tid as i32);
        let since = Instant::now();
        if !seized {
            match ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
                Ok(()) => {}
                // It has ended, or somebody else traces it.
                Err(Errno::ESRCH) => return Ok(Tried::LetGo),
                Err(_) if !threads::is_ours(memory.pid(), tid) => return Ok(Tried::LetGo),
                Err(errno) => return Err(Trouble::Forbidden(errno)),
            }
        }
        if seized && !interrupted && reach_stop(thread, Duration::ZERO) == Reached::End {
            return Ok(Tried::LetGo);
        }
        if !interrupted {
            // Again, as late as can be: it may have gone into a call meanwhile that must not be cut short.
            if !threads::may_be_stopped(memory.pid(), tid) {
                return Ok(Tried::Seized);
            }
            if ptrace::interrupt(thread).is_err() {
                return Ok(Tried::LetGo);
            }
        }
        match reach_stop(thread, if interrupted { Duration::ZERO } else { ONE }) {
            Reached::Stop => {}
            Reached::Nothing => return Ok(Tried::Late),
            Reached::End => return Ok(Tried::LetGo),
        }
        let registers = match ptrace::getregs(thread) {
            Ok(registers) => registers,
            Err(_) => return Ok(Tried::LetGo),
        };
        let is_narrow = registers.cs != CODE && !planted(Bug::CodeNotLooked);
        let unfit = match is_narrow {
            // It executes other code sooner or later, unless it waits.
            true => Some((Unfit::Narrow, registers.orig_rax as i64 >= 0)),
            false => dispatches_calls(thread).then_some((Unfit::Dispatches, true)),
        };
        // It may have set a filter a moment ago. And it must be the memory that is meant.
        if unfit.is_some() || !threads::is_ours(memory.pid(), tid) {
            let_go(thread, registers);
            return Ok(unfit.map_or(Tried::LetGo, |(unfit, lasts)| Tried::Unfit(unfit, lasts)));
        }
        memory.read(syscall, &mut [0]).map_err(|_| Trouble::Ended)?;
        let mut stopped =
            Stopped { thread, syscall, registers, signal_mask: 0, since, has_called: false, released: false };
        if let Some(aborts_at) = rseq::leave(memory, thread, registers.rip) {
            stopped.registers.rip = aborts_at;
        }
        stopped.signal_mask = stopped.read_mask()?;
        stopped.write_mask(u64::MAX)?;
        Ok(Tried::Stopped(Box::new(stopped)))
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
            eflags: self.registers.eflags & if planted(Bug::FlagsPassedOn) { u64::MAX } else { !OWN_FLAGS },
            ..self.registers
        };
        self.has_called = true;
        for _ in 0..AGAIN {
            ptrace::setregs(self.thread, registers).map_err(failed)?;
            // To its beginning, and to its end.
            for _ in 0..2 {
                ptrace::syscall(self.thread, None).map_err(failed)?;
                self.reach(name, |seen| seen == Seen::Call)?;
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
    fn reach(&mut self, what: &'static str, is_there: impl Fn(Seen) -> bool) -> Result<(), Trouble> {
        let failed = |error: memfold_sys::Errno| Trouble::Call(what, Errno::from_raw(error.0));
        let thread = self.thread.as_raw();
        let go_on = |signal| trace::go_on(thread, libc::PTRACE_SYSCALL, signal);
        loop {
            match trace::wait(thread, 0) {
                Ok(Seen::Exited(_) | Seen::Killed(_)) | Err(memfold_sys::Errno(libc::ECHILD)) => {
                    self.released = true;
                    return Err(Trouble::Ended);
                }
                Ok(seen) if is_there(seen) => return Ok(()),
                Ok(Seen::Signal(signal)) => go_on(signal).map_err(failed)?,
                Ok(_) => go_on(0).map_err(failed)?,
                Err(memfold_sys::Errno::EINTR) => {}
                Err(error) => return Err(failed(error)),
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
            let there = |seen| matches!(seen, Seen::Event(EVENT_STOP, _));
            let _ = self.reach("ptrace", there);
        }
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut registers = self.registers;
        if planted(Bug::RegisterNotRestored) {
            registers.r12 = 0;
        }
        if !planted(Bug::MaskNotRestored) {
            let _ = self.write_mask(self.signal_mask);
        }
        let_go(self.thread, registers);
    }
}

impl Drop for Stopped {
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
            Trouble::Unfit(unfit) => Error::Unfit(pid, unfit),
            Trouble::Forbidden(errno) => error::forbidden(pid, errno),
            // Nothing else is asked of it by that call than to make code executable that was written.
            Trouble::Call("mprotect", Errno::EACCES) => Error::NoCode(pid),
            Trouble::Call(call, errno) => Error::Call { pid, call, errno },
        }
    }
}

/// Lets a thread that is in the stop of our interruption go on with these registers. A system call that the interruption ended is made again.
fn let_go(thread: Pid, mut registers: libc::user_regs_struct) {
    let tid = thread.as_raw() as u32;
    // Calls of 32-bit code have other numbers.
    if registers.cs == CODE
        && !planted(Bug::CallNotMadeAgain)
        && threads::is_ended_by_interruption(&registers, |fd| threads::is_socket(tid, fd))
    {
        // The kernel makes it again, unless a handler is run: then it has been interrupted.
        registers.rax = RESTARTED_WITHOUT_HANDLER as u64;
    }
    let _ = ptrace::setregs(thread, registers);
    let _ = ptrace::detach(thread, None);
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

/// What came of trying to stop a thread.
enum Tried {
    /// It is.
    Stopped(Box<Stopped>),
    /// It was interrupted, and will stop.
    Late,
    /// It was not interrupted, and is seized.
    Seized,
    /// It is not traced, and may be tried again.
    LetGo,
    /// It is not traced, and does what ours would not outlive; whether it is not to be tried again.
    Unfit(Unfit, bool),
}

/// What came of waiting for a thread that was interrupted.
#[derive(Debug, PartialEq, Eq)]
enum Reached {
    /// It is stopped.
    Stop,
    /// It will be.
    Nothing,
    /// It has ended, or was let go since its process is being stopped.
    End,
}

/// Waits until the thread is stopped by our interruption. Signals that come before are passed on.
fn reach_stop(thread: Pid, patience: Duration) -> Reached {
    let since = Instant::now();
    loop {
        match trace::wait(thread.as_raw(), libc::WNOHANG) {
            Ok(Seen::Event(EVENT_STOP, libc::SIGTRAP)) => return Reached::Stop,
            // The process is being stopped.
            Ok(Seen::Event(..)) => {
                let _ = ptrace::detach(thread, None);
                return Reached::End;
            }
            Ok(Seen::Signal(signal)) => {
                let _ = trace::go_on(thread.as_raw(), libc::PTRACE_CONT, signal);
            }
            Ok(Seen::Nothing) => {
                if since.elapsed() >= patience {
                    return Reached::Nothing;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            Err(memfold_sys::Errno::EINTR) | Ok(Seen::Call) => {}
            Ok(Seen::Exited(_) | Seen::Killed(_)) | Err(_) => return Reached::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_signal_that_comes_before_the_interruption_is_passed_on() {
        // SAFETY: the child makes calls that are safe after a fork, and ends.
        unsafe {
            let (mut set, number) = (std::mem::zeroed(), libc::SIGRTMIN() + 2);
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, number);
            // Blocked until it is traced.
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let child = libc::fork();
            if child == 0 {
                extern "C" fn handler(_: i32) {
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(7) };
                }
                libc::signal(number, handler as extern "C" fn(i32) as usize);
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
                loop {
                    libc::pause();
                }
            }
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            let thread = Pid::from_raw(child);
            ptrace::seize(thread, ptrace::Options::empty()).unwrap();
            libc::kill(child, number);
            ptrace::interrupt(thread).unwrap();
            // The one or the other comes first.
            if reach_stop(thread, Duration::from_secs(60)) == Reached::Stop {
                ptrace::detach(thread, None).unwrap();
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, libc::__WALL);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
        }
    }
}
