//! The recording: closes pages, sees who touches them, and opens them for as long as it must.

use crate::maps;
use crate::tracee::{Step, Tracee};
use crate::{End, Mode, Recorded, Unsupported};
use anyhow::{bail, Context, Result};
use memfold_sim::format::Request;
use memfold_sys::trace::Seen;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const CLOSED: i32 = libc::PROT_NONE;
const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Runs `command` to its end, and calls `each` with the requests of its trace, `most` of them at most. A request's object is
/// the page's number in the address space; its time is its number with [`Mode::Exact`], and else the interval's.
///
/// # Errors
/// [`Unsupported`] where programs may not be traced; and what `each` says.
pub fn record(
    mut command: Command,
    mode: Mode,
    most: u64,
    each: impl FnMut(Request) -> std::io::Result<()>,
) -> Result<Recorded> {
    let trace_me = || ptrace::traceme().map_err(std::io::Error::from);
    // SAFETY: the closure makes one system call and allocates nothing, as is needed between fork and exec.
    unsafe { command.pre_exec(trace_me) };
    let child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            let why = "the program may not be executed, or this process may not trace others";
            Unsupported(format!("{why}: {error}")).into()
        }
        _ => anyhow::Error::from(error).context("cannot start the program"),
    })?;
    let mut tracee = Tracee::new(Pid::from_raw(child.id() as i32));
    let Seen::Signal(_) = tracee.wait()? else { bail!("the program did not stop at its start") };
    let options = Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACECLONE;
    ptrace::setoptions(tracee.pid, options).context("cannot trace the program")?;
    let clock = match mode {
        Mode::Exact => None,
        Mode::Bits(every) => Some(Clock::start(tracee.pid, every)),
    };
    let began = Instant::now();
    let (ranges, opened) = (Vec::new(), HashSet::new());
    let mut recorder = Recorder {
        tracee,
        ranges,
        closed: false,
        stale: true,
        opened,
        interval: 0,
        requests: 0,
        most,
        clock,
        began,
        each,
    };
    let (end, status) = recorder.run()?;
    let time = began.elapsed();
    drop(recorder.clock.take());
    let status = match end {
        End::Program => status,
        End::Thread | End::Limit => recorder.tracee.wait()?,
    };
    let code = match status {
        Seen::Exited(code) => code as u8,
        Seen::Killed(signal) => 128 + signal as u8,
        other => bail!("the program ended in a way that is not known: {other:?}"),
    };
    Ok(Recorded { requests: recorder.requests, stops: recorder.tracee.stops, time, end, code })
}

struct Recorder<F> {
    tracee: Tracee,
    /// What is recorded.
    ranges: Vec<Range<u64>>,
    /// Whether it is closed.
    closed: bool,
    /// Whether the program's mappings may have changed.
    stale: bool,
    /// Pages of the interval's requests.
    opened: HashSet<u64>,
    interval: u64,
    requests: u64,
    most: u64,
    clock: Option<Clock>,
    began: Instant,
    each: F,
}

impl<F: FnMut(Request) -> std::io::Result<()>> Recorder<F> {
    fn run(&mut self) -> Result<(End, Seen)> {
        let mut inside = false;
        let mut signal = 0;
        loop {
            for held in std::mem::take(&mut self.tracee.held) {
                // A signal of a program that has just ended goes nowhere.
                send(self.tracee.pid, held);
            }
            self.clock.iter().for_each(|clock| clock.running.store(!inside, Ordering::Relaxed));
            self.tracee.go_on(std::mem::take(&mut signal))?;
            let status = self.tracee.wait()?;
            self.clock.iter().for_each(|clock| clock.running.store(false, Ordering::Relaxed));
            match status {
                Seen::Call if inside => {
                    inside = false;
                    if self.requests >= self.most {
                        return self.leave(End::Limit, status);
                    }
                    if !self.tracee.restarts()? {
                        self.close()?;
                    }
                }
                Seen::Call => {
                    self.enter()?;
                    inside = true;
                }
                Seen::Signal(libc::SIGSEGV) if self.is_ours()? => {
                    if let Some(gone) = self.access()? {
                        return Ok((End::Program, gone));
                    }
                    if self.requests >= self.most {
                        self.open()?;
                        return self.leave(End::Limit, status);
                    }
                }
                Seen::Signal(libc::SIGSTOP) if self.clock.is_some() => {
                    if !inside && self.tracee.syscall_at.is_some() {
                        self.open()?;
                        self.close()?;
                    }
                }
                // The kernel writes a frame for the handler, so all must be open until the handler begins.
                Seen::Signal(other) if self.closed => {
                    self.open()?;
                    match self.tracee.step(other)? {
                        Step::Gone(gone) => return Ok((End::Program, gone)),
                        Step::Done | Step::Fault => self.close()?,
                    }
                }
                Seen::Signal(other) => signal = other,
                Seen::Event(libc::PTRACE_EVENT_CLONE, _) => {
                    let thread = ptrace::getevent(self.tracee.pid).context("cannot find the new thread")?;
                    let mut thread = Tracee::new(Pid::from_raw(thread as i32));
                    thread.wait()?;
                    ptrace::detach(thread.pid, None).context("cannot let the new thread go")?;
                    return self.leave(End::Thread, status);
                }
                Seen::Event(..) => {
                    (self.closed, self.stale, self.tracee.syscall_at) = (false, true, None);
                    self.ranges.clear();
                }
                gone => return Ok((End::Program, gone)),
            }
        }
    }

    /// Lets the program go on alone.
    fn leave(&mut self, end: End, status: Seen) -> Result<(End, Seen)> {
        self.clock = None;
        ptrace::detach(self.tracee.pid, None).context("cannot let the program go")?;
        Ok((end, status))
    }

    /// The program is about to make a system call: the call is held back, all is opened, and it is made again.
    fn enter(&mut self) -> Result<()> {
        let registers = self.tracee.registers()?;
        self.tracee.syscall_at = Some(registers.rip - 2);
        let changes = [
            libc::SYS_mmap,
            libc::SYS_munmap,
            libc::SYS_mprotect,
            libc::SYS_mremap,
            libc::SYS_brk,
            libc::SYS_arch_prctl,
        ];
        self.stale |= changes.contains(&(registers.orig_rax as i64));
        if !self.closed {
            return Ok(());
        }
        self.tracee.set(libc::user_regs_struct { orig_rax: u64::MAX, ..registers })?;
        self.until_syscall()?;
        self.open()?;
        let again = libc::user_regs_struct { rip: registers.rip - 2, rax: registers.orig_rax, ..registers };
        self.tracee.set(again)?;
        self.until_syscall()
    }

    /// Lets the program go on to the end, or the beginning, of a system call.
    fn until_syscall(&mut self) -> Result<()> {
        loop {
            self.tracee.go_on(0)?;
            match self.tracee.wait()? {
                Seen::Call => return Ok(()),
                Seen::Signal(libc::SIGSTOP) => {}
                Seen::Signal(other) => self.tracee.held.push(other),
                other => bail!("the program ended while a system call was held back: {other:?}"),
            }
        }
    }

    fn close(&mut self) -> Result<()> {
        if let Some(clock) = &self.clock {
            let interval = (self.began.elapsed().as_nanos() / clock.every.as_nanos()) as u64;
            if interval > self.interval {
                self.interval = interval;
                self.opened.clear();
            }
        }
        if self.stale {
            // libc's area for restartable sequences lies here; the kernel writes it at any time (rseq(2)).
            let thread = self.tracee.registers()?.fs_base / PAGE * PAGE;
            let path = format!("/proc/{}/maps", self.tracee.pid);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            self.ranges = maps::recorded(&text, thread..thread + 2 * PAGE);
            self.stale = false;
        }
        self.closed = true;
        if !self.tracee.protect(&self.ranges, CLOSED)? {
            self.open()?;
        }
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        self.closed = false;
        self.tracee.protect(&self.ranges, OPEN).map(drop)
    }

    /// Whether a fault is at a page that was closed here.
    fn is_ours(&self) -> Result<bool> {
        Ok(self.closed && self.page()?.is_some())
    }

    /// The page of the fault that the program has stopped at, if it is recorded.
    fn page(&self) -> Result<Option<u64>> {
        const SEGV_ACCERR: i32 = 2;
        let info = ptrace::getsiginfo(self.tracee.pid).context("cannot read what the signal is about")?;
        if info.si_code != SEGV_ACCERR {
            return Ok(None);
        }
        // SAFETY: this member is set where SIGSEGV comes from a fault, which the code says.
        let address = unsafe { info.si_addr() } as u64;
        Ok(self.ranges.iter().any(|range| range.contains(&address)).then_some(address / PAGE))
    }

    /// Lets the instruction through that has touched a closed page, with all pages that it needs. Returns how the program
    /// ended, if it did.
    fn access(&mut self) -> Result<Option<Seen>> {
        let mut pages: Vec<Range<u64>> = Vec::new();
        loop {
            let Some(page) = self.page()? else { bail!("the program may not touch memory of its own") };
            let range = page * PAGE..(page + 1) * PAGE;
            if pages.contains(&range) {
                bail!("the program may not touch page {page:#x} though it was opened");
            }
            let (time, fresh) = match self.clock {
                None => (self.requests, true),
                Some(_) => (self.interval, self.opened.insert(page)),
            };
            if fresh {
                (self.each)(Request { time, object: page }).context("cannot write the trace")?;
                self.requests += 1;
            }
            if !self.tracee.protect(std::slice::from_ref(&range), OPEN)? {
                // Too many mappings: nothing more is seen until the next system call or interval.
                self.open()?;
                return Ok(None);
            }
            if self.clock.is_some() {
                return Ok(None);
            }
            pages.push(range);
            match self.tracee.step(0)? {
                Step::Done => break,
                Step::Fault if self.page()?.is_some() => {}
                // A fault of the program's own comes again when it goes on.
                Step::Fault => break,
                Step::Gone(gone) => return Ok(Some(gone)),
            }
        }
        self.tracee.protect(&pages, CLOSED)?;
        Ok(None)
    }
}

fn send(pid: Pid, signal: i32) {
    // SAFETY: no memory of ours is concerned.
    unsafe { libc::kill(pid.as_raw(), signal) };
}

/// Stops a program at the end of each interval, by a signal that it never gets.
struct Clock {
    every: Duration,
    /// Whether the program runs code of its own.
    running: Arc<AtomicBool>,
    on: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Clock {
    fn start(pid: Pid, every: Duration) -> Clock {
        let (running, on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let flags = (running.clone(), on.clone());
        let tick = move || {
            while flags.1.load(Ordering::Relaxed) {
                std::thread::park_timeout(every);
                if flags.0.load(Ordering::Relaxed) && flags.1.load(Ordering::Relaxed) {
                    // The program may just have ended.
                    send(pid, libc::SIGSTOP);
                }
            }
        };
        Clock { every, running, on, thread: Some(std::thread::spawn(tick)) }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.on.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
