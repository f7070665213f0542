//! A stopped program: its registers, one instruction of it, and system calls made in its name.
//!
//! Invariants: registers are what they were after a system call in its name.

use anyhow::{bail, Context, Result};
use memfold_sys::trace::{self, Seen};
use nix::libc::user_regs_struct as Registers;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// What the kernel returns inside itself for a call to be restarted (ERESTARTSYS to ERESTART_RESTARTBLOCK).
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

pub(crate) struct Tracee {
    pub(crate) pid: Pid,
    /// Where an instruction `syscall` is.
    pub(crate) syscall_at: Option<u64>,
    /// Signals that came while an instruction was let through.
    pub(crate) held: Vec<i32>,
    pub(crate) stops: u64,
}

/// How an instruction ended that was let through.
pub(crate) enum Step {
    /// It was executed.
    Done,
    /// It touched memory that it may not touch.
    Fault,
    /// The program has ended.
    Gone(Seen),
}

impl Tracee {
    pub(crate) fn new(pid: Pid) -> Tracee {
        Tracee { pid, syscall_at: None, held: Vec::new(), stops: 0 }
    }

    pub(crate) fn wait(&mut self) -> Result<Seen> {
        loop {
            match trace::wait(self.pid.as_raw(), 0) {
                Err(memfold_sys::Errno::EINTR) => {}
                other => {
                    self.stops += 1;
                    return other.context("cannot wait for the program");
                }
            }
        }
    }

    pub(crate) fn registers(&self) -> Result<Registers> {
        ptrace::getregs(self.pid).context("cannot read the program's registers")
    }

    pub(crate) fn set(&self, registers: Registers) -> Result<()> {
        ptrace::setregs(self.pid, registers).context("cannot set the program's registers")
    }

    /// Whether the kernel is about to restart the system call that has just been left.
    pub(crate) fn restarts(&self) -> Result<bool> {
        Ok(RESTARTS.contains(&(self.registers()?.rax as i64)))
    }

    /// Lets the program go on to its next system call, with a signal for it or 0.
    pub(crate) fn go_on(&self, signal: i32) -> Result<()> {
        trace::go_on(self.pid.as_raw(), libc::PTRACE_SYSCALL, signal).context("cannot let the program go on")
    }

    /// Lets one instruction through, with a signal for the program or 0.
    pub(crate) fn step(&mut self, signal: i32) -> Result<Step> {
        let mut signal = signal;
        loop {
            let signal = std::mem::take(&mut signal);
            trace::go_on(self.pid.as_raw(), libc::PTRACE_SINGLESTEP, signal)
                .context("cannot step the program")?;
            match self.wait()? {
                Seen::Signal(libc::SIGTRAP) => return Ok(Step::Done),
                Seen::Signal(libc::SIGSEGV) => return Ok(Step::Fault),
                Seen::Signal(libc::SIGSTOP) => {}
                Seen::Signal(other) => self.held.push(other),
                gone => return Ok(Step::Gone(gone)),
            }
        }
    }

    /// Changes what the program may do with its memory, by calls in its name; `false` if the kernel refused one.
    pub(crate) fn protect(&mut self, ranges: &[std::ops::Range<u64>], rights: i32) -> Result<bool> {
        let Some(at) = self.syscall_at else { return Ok(false) };
        let before = self.registers()?;
        let mut done = true;
        for range in ranges {
            let call = Registers {
                rip: at,
                rax: nix::libc::SYS_mprotect as u64,
                orig_rax: u64::MAX,
                rdi: range.start,
                rsi: range.end - range.start,
                rdx: rights as u64,
                ..before
            };
            self.set(call)?;
            match self.step(0)? {
                Step::Done => done &= self.registers()?.rax == 0,
                Step::Fault => bail!("the program's code is gone from {at:#x}, where it made system calls"),
                Step::Gone(status) => bail!("the program ended while it was stopped: {status:?}"),
            }
        }
        self.set(before)?;
        Ok(done)
    }
}
